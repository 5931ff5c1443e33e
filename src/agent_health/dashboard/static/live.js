// What changes on a page while somebody looks at it?
// Events come as JSON over Server-Sent Events and are put in as text, never as markup. Without this script
// every page can be read as well; it is then as old as its last loading.
"use strict";
(() => {
  const place = document.querySelector('meta[name="agent-health-position"]');
  const shown = document.getElementById("live");
  if (!place || !shown || !window.EventSource) return;
  const feed = document.querySelector("[data-feed]");
  const about = document.querySelector("[data-about]");
  const said = document.getElementById("news");
  const most = feed ? Number(feed.dataset.most) : 0;
  const shownGroup = feed ? feed.dataset.group || "" : "";
  const RELOAD_MS = 3000, SAY_MS = 5000, COLD_MS = 60000;
  let last = Number(place.content), reloadAt = 0, unsaid = 0, isPaused = false;

  const say = (isOn) => {
    shown.hidden = false;
    shown.classList.toggle("away", !isOn);
    shown.textContent = isOn ? "live" : "not live: trying again";
  };
  const element = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const mark = (kind, word) => element("span", `mark ${kind}-${word}`, word);
  const isWanted = (line) =>
    feed && (feed.dataset.feed === "all" ? !shownGroup || line.type.split(".")[0] === shownGroup : line.is_notable) &&
    (!about || line.agent_id === about.dataset.about);

  const addLine = (line) => {
    for (const none of feed.querySelectorAll(".none")) none.remove();
    const item = element("li", `event new ${line.mark}`);
    item.dataset.sequence = line.sequence;
    const time = element("time", "", line.at.slice(0, 10) + " " + line.at.slice(11, 19));
    time.dateTime = line.at;
    item.append(time, " ", element("span", "kind", line.type), " ");
    if (line.subject && !about) {
      const subject = element(line.where ? "a" : "b", "", line.subject);
      if (line.where) subject.href = line.where;
      item.append(subject, " ");
    }
    item.append(element("span", "text", line.text));
    if (line.by) item.append(" ", element("span", "faint", `by ${line.by}`));
    feed.prepend(item);
    while (feed.children.length > most) feed.lastElementChild.remove();
    unsaid += 1;
  };
  const markAgent = (line) => {
    if (!line.status && !line.health) return;
    for (const row of document.querySelectorAll(`[data-agent="${CSS.escape(line.agent_id)}"]`)) {
      const status = line.status && row.querySelector("[data-status]");
      const health = line.health && row.querySelector("[data-health]");
      if (status) status.replaceChildren(mark("status", line.status));
      if (health) health.replaceChildren(mark("health", line.health));
    }
  };
  // The page of what an event is about is fetched anew, soon but not for each of many events, and not
  // while somebody is filling in one of its forms.
  const reloadSoon = () => {
    if (reloadAt) return;
    reloadAt = setTimeout(async () => {
      reloadAt = 0;
      if (document.hidden || document.querySelector("main form:focus-within, main details[open] form")) return;
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (!answer.ok || answer.redirected) return;
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of document.querySelectorAll("[data-part]")) {
          const now = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
          if (now && !part.contains(document.activeElement) && !part.querySelector("details[open]")) part.replaceChildren(...now.childNodes);
        }
      } catch { /* The next event tries again. */ }
    }, RELOAD_MS * (0.5 + Math.random()));
  };

  const take = (message) => {
    const line = JSON.parse(message.data);
    if (line.sequence <= last) return;
    last = line.sequence;
    markAgent(line);
    if (about && line.agent_id === about.dataset.about) reloadSoon();
    const task = document.querySelector("[data-task]");
    if (task && line.where === `/tasks/${task.dataset.task}`) reloadSoon();
    if (!isPaused && isWanted(line)) addLine(line);
  };
  const takeCounts = (message) => {
    for (const [name, count] of Object.entries(JSON.parse(message.data))) {
      const there = document.querySelector(`[data-count="${CSS.escape(name)}"]`);
      if (there) there.textContent = count.toLocaleString("en");
    }
  };
  const open = () => {
    const source = new EventSource(`/live?after=${last}`);
    source.onopen = () => say(true);
    source.addEventListener("line", take);
    source.addEventListener("counts", takeCounts);
    source.addEventListener("missed", (message) => { last = Number(message.data); });
    source.onerror = () => {
      say(false);
      // A browser comes back by itself, unless it was refused.
      if (source.readyState === EventSource.CLOSED) setTimeout(open, COLD_MS);
    };
  };
  const pause = document.getElementById("pause");
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
    });
  }
  // Whoever listens is told now and then how many came, not each of them.
  setInterval(() => {
    if (said && unsaid) said.textContent = unsaid === 1 ? "One new event" : `${unsaid} new events`;
    unsaid = 0;
  }, SAY_MS);
  open();
})();
