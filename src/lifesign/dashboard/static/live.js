// Live updates of an open page.
// Events arrive as JSON over Server-Sent Events and are inserted as text, never as markup. Every page works
// without this script; it then shows the state at the time of loading.
"use strict";
(() => {
  const position = document.querySelector('meta[name="lifesign-position"]');
  const connectionLabel = document.getElementById("live");
  if (!position || !connectionLabel || !window.EventSource) return;
  const feed = document.querySelector("[data-feed]");
  const agentFeed = document.querySelector("[data-feed-agent]");
  const announcement = document.getElementById("announcement");
  const maxEvents = feed ? Number(feed.dataset.maxEvents) : 0;
  const eventGroup = feed ? feed.dataset.group || "" : "";
  const changeNotice = document.querySelector("[data-changes]");
  const changed = new Set();
  const MAX_COUNTED_CHANGES = 1000;
  const RELOAD_MS = 3000, ANNOUNCE_MS = 5000, RETRY_MS = 60000;
  const SCREEN_READER_DELAY_MS = 200;
  let lastSequence = Number(position.content), reloadTimer = 0, unannouncedCount = 0;
  let isPaused = false, needsReload = false, hasMissedEvents = false, isSessionEnded = false;

  const showConnection = (isLive) => {
    connectionLabel.hidden = false;
    connectionLabel.classList.toggle("disconnected", !isLive);
    connectionLabel.textContent = isLive ? "live" : "not live: trying again";
  };
  // The rest of the page stays, with the unsent text of its forms.
  const endSession = () => {
    if (isSessionEnded) return;
    isSessionEnded = true;
    const message = element("p", "session-ended");
    message.setAttribute("role", "status");
    connectionLabel.closest(".session").replaceChildren();
    document.querySelector(".page-header").append(message);
    const login = element("a", "", "Log in");
    login.href = `/login?${new URLSearchParams({ next: location.pathname + location.search })}`;
    // Screen readers announce only changes of an element that they already know.
    setTimeout(() => message.append("Your session has ended, and this page is no longer live. ", login, " to continue here."), SCREEN_READER_DELAY_MS);
  };
  const element = (name, className, text) => {
    const created = document.createElement(name);
    if (className) created.className = className;
    if (text !== undefined) created.textContent = text;
    return created;
  };
  const mark = (kind, word) => element("span", `mark ${kind}-${word}`, word);
  const isInFeed = (event) =>
    feed && (feed.dataset.feed === "all" ? !eventGroup || event.type.split(".")[0] === eventGroup : event.is_notable) &&
    (!agentFeed || event.agent_id === agentFeed.dataset.feedAgent);

  const addEvent = (event) => {
    for (const placeholder of feed.querySelectorAll(".empty")) placeholder.remove();
    const item = element("li", `event new ${event.mark}`);
    item.dataset.sequence = event.sequence;
    const time = element("time", "", event.at.slice(0, 10) + " " + event.at.slice(11, 19));
    time.dateTime = event.at;
    item.append(time, " ", element("span", "event-type", event.type), " ");
    if (event.subject && !agentFeed) {
      const subject = element(event.where ? "a" : "b", "", event.subject);
      if (event.where) subject.href = event.where;
      item.append(subject, " ");
    }
    item.append(element("span", "text", event.text));
    if (event.by) item.append(" ", element("span", "muted", `by ${event.by}`));
    feed.prepend(item);
    while (feed.children.length > maxEvents) feed.lastElementChild.remove();
    unannouncedCount += 1;
  };
  const updateAgentRows = (event) => {
    if (!event.status && !event.health) return;
    for (const row of document.querySelectorAll(`[data-agent="${CSS.escape(event.agent_id)}"]`)) {
      const status = event.status && row.querySelector("[data-status]");
      const health = event.health && row.querySelector("[data-health]");
      if (status) status.replaceChildren(mark("status", event.status));
      if (health) health.replaceChildren(mark("health", event.health));
    }
  };
  // Moving the rows of a table would disturb a reader: the notice shows only the number of changes.
  const showChangeCount = () => {
    const count = changed.size;
    const number = hasMissedEvents || count >= MAX_COUNTED_CHANGES ? `At least ${count}` : String(count);
    const noun = count === 1 ? changeNotice.dataset.changes : `${changeNotice.dataset.changes}s`;
    changeNotice.querySelector("span").textContent = count ? `${number} ${noun} changed` : `Some ${noun} changed`;
    changeNotice.hidden = false;
  };
  const countChange = (event) => {
    if (!event.is_notable || event.type.split(".")[0] !== changeNotice.dataset.changes) return;
    if (changed.size < MAX_COUNTED_CHANGES) changed.add(event.where || event.subject);
    showChangeCount();
  };
  const noteMissedEvents = () => {
    hasMissedEvents = true;
    if (changeNotice) showChangeCount();
  };
  const isInUse = () => document.hidden || document.querySelector("main .actions:focus-within, main details[open] form");
  // One request serves many events. A hidden page, or one whose forms are in use, reloads afterwards.
  const scheduleReload = () => {
    if (reloadTimer || isSessionEnded) return;
    reloadTimer = setTimeout(async () => {
      reloadTimer = 0;
      if (isSessionEnded) return;
      needsReload = Boolean(isInUse());
      if (needsReload) return;
      try {
        const response = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (response.redirected && new URL(response.url).pathname === "/login") endSession();
        if (!response.ok || response.redirected) return;
        const loaded = new DOMParser().parseFromString(await response.text(), "text/html");
        for (const part of document.querySelectorAll("[data-part]")) {
          const replacement = loaded.querySelector(`[data-part="${part.dataset.part}"]`);
          if (replacement && !part.contains(document.activeElement) && !part.querySelector("details[open]")) part.replaceChildren(...replacement.childNodes);
        }
      } catch { /* The next event tries again. */ }
    }, RELOAD_MS * (0.5 + Math.random()));
  };

  const onEvent = (message) => {
    const event = JSON.parse(message.data);
    if (event.sequence <= lastSequence) return;
    // If there are many events at once, the server sends only the last ones.
    if (event.sequence > lastSequence + 1) noteMissedEvents();
    lastSequence = event.sequence;
    updateAgentRows(event);
    if (changeNotice) countChange(event);
    if (agentFeed && event.agent_id === agentFeed.dataset.feedAgent) scheduleReload();
    const task = document.querySelector("[data-task]");
    if (task && event.where === `/tasks/${task.dataset.task}`) scheduleReload();
    if (!isPaused && isInFeed(event)) addEvent(event);
  };
  const onCounts = (message) => {
    for (const [name, count] of Object.entries(JSON.parse(message.data))) {
      const counter = document.querySelector(`[data-count="${CSS.escape(name)}"]`);
      if (!counter) continue;
      const noun = counter.dataset.noun ? ` ${counter.dataset.noun}${count === 1 ? "" : "s"}` : "";
      const text = count.toLocaleString("en") + noun;
      if (counter.textContent === text) continue;
      // The list of waiting tasks is below its count: load both together, so that they agree.
      if (name === "waiting") scheduleReload();
      else counter.textContent = text;
    }
  };
  const connect = () => {
    const url = `/live?after=${lastSequence}`, source = new EventSource(url);
    source.onopen = () => showConnection(true);
    source.addEventListener("line", onEvent);
    source.addEventListener("counts", onCounts);
    source.addEventListener("missed", (message) => {
      const sequence = Number(message.data);
      if (sequence > lastSequence) noteMissedEvents();
      lastSequence = sequence;
    });
    source.onerror = () => {
      if (isSessionEnded) return source.close();
      showConnection(false);
      // The browser reconnects by itself, except after an error status, which it does not report.
      if (source.readyState === EventSource.CLOSED) retryOrEndSession(url);
    };
  };
  const retryOrEndSession = async (url) => {
    const request = new AbortController();
    try {
      const { status } = await fetch(url, { signal: request.signal });
      request.abort();
      if (status === 401 || status === 403) return endSession();
    } catch { /* The server is unreachable: retry below. */ }
    setTimeout(connect, RETRY_MS);
  };
  const pause = document.getElementById("pause");
  if (pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => {
      isPaused = !isPaused;
      pause.setAttribute("aria-pressed", String(isPaused));
    });
  }
  const reloadIfNeeded = () => { if (needsReload && !isInUse()) scheduleReload(); };
  document.addEventListener("visibilitychange", reloadIfNeeded);
  document.addEventListener("focusout", () => setTimeout(reloadIfNeeded));
  // Screen readers announce the number of new events at intervals, instead of each event.
  setInterval(() => {
    if (announcement && unannouncedCount) announcement.textContent = unannouncedCount === 1 ? "One new event" : `${unannouncedCount} new events`;
    unannouncedCount = 0;
  }, ANNOUNCE_MS);
  connect();
})();
