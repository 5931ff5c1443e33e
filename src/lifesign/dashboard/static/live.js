// What changes on a page while somebody looks at it?
// Events come as JSON over Server-Sent Events and are put in as text, never as markup. Without this script
// every page can be read as well; it is then as old as its last loading.
"use strict";
(() => {
  const place = document.querySelector('meta[name="lifesign-position"]');
  const shown = document.getElementById("live");
  if (!place || !shown || !window.EventSource) return;
  const feed = document.querySelector("[data-feed]");
  const about = document.querySelector("[data-about]");
  const said = document.getElementById("news");
  const most = feed ? Number(feed.dataset.most) : 0;
  const shownGroup = feed ? feed.dataset.group || "" : "";
  const changes = document.querySelector("[data-changes]");
  const changed = new Set();
  const MOST_CHANGED = 1000;
  const RELOAD_MS = 3000, SAY_MS = 5000, COLD_MS = 60000;
  const SPEAK_MS = 200;
  let last = Number(place.content), reloadAt = 0, unsaid = 0;
  let isPaused = false, isStale = false, hasMissed = false, isOver = false;

  const say = (isOn) => {
    shown.hidden = false;
    shown.classList.toggle("away", !isOn);
    shown.textContent = isOn ? "live" : "not live: trying again";
  };
  // What stands there is left, with what somebody has begun to write: it is read, and grows older.
  const sayOver = () => {
    if (isOver) return;
    isOver = true;
    const told = element("p", "over");
    told.setAttribute("role", "status");
    shown.closest(".who").replaceChildren();
    document.querySelector(".top").append(told);
    const again = element("a", "", "Log in");
    again.href = `/login?${new URLSearchParams({ next: location.pathname + location.search })}`;
    // Screen readers tell of what comes into a place that they know already.
    setTimeout(() => told.append("Your session is over, and this page is not live any more. ", again, " to go on here."), SPEAK_MS);
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
  // Rows of a table stay where they are while somebody reads them: how many have changed is told.
  const sayChanges = () => {
    const count = changed.size;
    const few = hasMissed || count >= MOST_CHANGED ? `At least ${count}` : String(count);
    const many = count === 1 ? changes.dataset.changes : `${changes.dataset.changes}s`;
    changes.querySelector("span").textContent = count ? `${few} ${many} changed` : `Some ${many} changed`;
    changes.hidden = false;
  };
  const noteChange = (line) => {
    if (!line.is_notable || line.type.split(".")[0] !== changes.dataset.changes) return;
    if (changed.size < MOST_CHANGED) changed.add(line.where || line.subject);
    sayChanges();
  };
  const noteMissed = () => {
    hasMissed = true;
    if (changes) sayChanges();
  };
  const isBusy = () => document.hidden || document.querySelector("main .actions:focus-within, main details[open] form");
  // The page of what an event is about is fetched anew, soon but not for each of many events, and not
  // while somebody is filling in one of its forms, or looks elsewhere: then as soon as that is over.
  const reloadSoon = () => {
    if (reloadAt || isOver) return;
    reloadAt = setTimeout(async () => {
      reloadAt = 0;
      if (isOver) return;
      isStale = Boolean(isBusy());
      if (isStale) return;
      try {
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (answer.redirected && new URL(answer.url).pathname === "/login") sayOver();
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
    // Of a flood the last ones are told.
    if (line.sequence > last + 1) noteMissed();
    last = line.sequence;
    markAgent(line);
    if (changes) noteChange(line);
    if (about && line.agent_id === about.dataset.about) reloadSoon();
    const task = document.querySelector("[data-task]");
    if (task && line.where === `/tasks/${task.dataset.task}`) reloadSoon();
    if (!isPaused && isWanted(line)) addLine(line);
  };
  const takeCounts = (message) => {
    for (const [name, count] of Object.entries(JSON.parse(message.data))) {
      const there = document.querySelector(`[data-count="${CSS.escape(name)}"]`);
      if (!there) continue;
      const noun = there.dataset.noun ? ` ${there.dataset.noun}${count === 1 ? "" : "s"}` : "";
      const text = count.toLocaleString("en") + noun;
      if (there.textContent === text) continue;
      // Who waits for people stands below the count: both are of one moment.
      if (name === "waiting") reloadSoon();
      else there.textContent = text;
    }
  };
  const open = () => {
    const where = `/live?after=${last}`, source = new EventSource(where);
    source.onopen = () => say(true);
    source.addEventListener("line", take);
    source.addEventListener("counts", takeCounts);
    source.addEventListener("missed", (message) => {
      const now = Number(message.data);
      if (now > last) noteMissed();
      last = now;
    });
    source.onerror = () => {
      if (isOver) return source.close();
      say(false);
      // A browser comes back by itself, unless it was refused: it does not say why.
      if (source.readyState === EventSource.CLOSED) askWhy(where);
    };
  };
  const askWhy = async (where) => {
    const asking = new AbortController();
    try {
      const { status } = await fetch(where, { signal: asking.signal });
      asking.abort();
      if (status === 401 || status === 403) return sayOver();
    } catch { /* Nobody answers: later somebody may. */ }
    setTimeout(open, COLD_MS);
  };
  const pause = document.getElementById("pause");
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
    });
  }
  const goOn = () => { if (isStale && !isBusy()) reloadSoon(); };
  document.addEventListener("visibilitychange", goOn);
  document.addEventListener("focusout", () => setTimeout(goOn));
  // Whoever listens is told now and then how many came, not each of them.
  setInterval(() => {
    if (said && unsaid) said.textContent = unsaid === 1 ? "One new event" : `${unsaid} new events`;
    unsaid = 0;
  }, SAY_MS);
  open();
})();
