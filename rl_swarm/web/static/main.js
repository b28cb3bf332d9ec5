// The frame of the page: which experiment, which view, and what is live.

import { ask, follow, hasToken, keepToken, takeToken } from "./api.js";
import { closeAll } from "./charts.js";
import { fill, h, state } from "./dom.js";
import * as compare from "./compare.js";
import * as experiments from "./experiments.js";
import * as nodes from "./nodes.js";
import * as overview from "./overview.js";
import * as rollouts from "./rollouts.js";

const VIEWS = { overview, nodes, rollouts, compare, experiments };
const TITLES = { overview: "Overview", nodes: "Nodes", rollouts: "Rollouts", compare: "Compare", experiments: "Experiments" };
const REFRESH = 1000; // milliseconds between two refreshes at least
const RETRY = 5000;
const LOOK_AROUND = 10000;
const PATIENCE = 2000; // without a connection, before the page says so in full

const main = document.getElementById("main");
const select = document.getElementById("experiment");
const live = document.getElementById("live");
const lost = document.getElementById("lost");
const page = { known: [], view: null, stop: null, experiment: null, turn: 0, timer: null, last: 0 };

function place() {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const params = Object.fromEntries(new URLSearchParams(search || ""));
  return { name: VIEWS[path] ? path : "overview", params };
}

export function link(name, params) {
  const search = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== undefined && value !== null && value !== ""));
  return `#/${name}?${search}`;
}

const MEANINGS = {
  "not connected": "There is no run to follow",
  live: "The page follows the run",
  connecting: "Connecting to the server",
  reconnecting: "The server does not answer. Is 'rl-swarm web' still running? The page shows what it had, and tries again.",
};

function say(word) {
  live.textContent = word;
  live.dataset.state = word;
  live.title = MEANINGS[word];
  if (word === "live" || word === "not connected") {
    clearTimeout(page.lost);
    page.lost = null;
    lost.hidden = true;
  } else if (!page.lost) {
    page.lost = setTimeout(() => { lost.textContent = live.title; lost.hidden = false; }, PATIENCE);
  }
}

async function list() {
  const found = await ask("experiments");
  page.known = found.experiments;
  page.usual = found.default;
  const names = found.experiments.map((each) => each.name);
  const shown = [...select.options].map((option) => option.value);
  if (JSON.stringify(names) !== JSON.stringify(shown)) fill(select, names.map((name) => h("option", { value: name }, name)));
  select.disabled = !names.length;
  if (page.experiment) select.value = page.experiment;
}

async function show() {
  const turn = ++page.turn;
  const { name, params } = place();
  closeAll();
  clearTimeout(page.timer);
  page.timer = null;
  page.view = null;
  for (const tab of document.querySelectorAll("#tabs a")) {
    if (tab.dataset.name === name) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  fill(main, state("Loading", "Reading the run."));
  main.setAttribute("aria-busy", "true");
  try {
    if (!page.known.length) await list();
    if (turn !== page.turn) return;
    const experiment = params.experiment || page.experiment || page.usual || "";
    watch(experiment);
    document.title = [TITLES[name], experiment, "RL Swarm"].filter(Boolean).join(" – ");
    if (!experiment && name !== "experiments") {
      say("not connected");
      fill(main, experiments.none());
      return;
    }
    const view = await VIEWS[name].open({ experiment, params, known: page.known, link, isCurrent: () => turn === page.turn });
    if (turn !== page.turn) return;
    page.view = view;
    fill(main, h("h1", null, view.title || TITLES[name]), view.element);
    if (view.shown) view.shown();
    page.last = Date.now();
    main.dataset.drawn = String(performance.now());
  } catch (error) {
    if (turn !== page.turn) return;
    trouble(error);
  } finally {
    if (turn === page.turn) main.removeAttribute("aria-busy");
  }
}

function trouble(error) {
  if (error.status === undefined) console.error(error);
  clearTimeout(page.lost); // the view itself says it
  lost.hidden = true;
  if (error.status === 401 || error.status === 404) unwatch();
  if (error.status === 401) {
    fill(main, state(hasToken() ? "The token is wrong" : "A token is needed", "Open the address that 'rl-swarm web' has printed, or enter the token here.", tokenForm()));
    return;
  }
  const title = error.status === 404 ? "Not found" : "This cannot be shown now";
  fill(main, state(title, error.message || String(error), h("p", null, h("button", { type: "button", onclick: show }, "Try again"))));
  if (error.status !== 404) page.timer = setTimeout(show, RETRY);
}

function tokenForm() {
  const field = h("input", { type: "password", id: "token", autocomplete: "off", required: true });
  const enter = (event) => {
    event.preventDefault();
    keepToken(field.value.trim());
    show();
  };
  return h("form", { class: "tools", onsubmit: enter }, h("label", { for: "token" }, "Token"), field, h("button", { type: "submit" }, "Open"));
}

function watch(experiment) {
  for (const tab of document.querySelectorAll("#tabs a")) {
    tab.setAttribute("href", link(tab.dataset.name, { experiment }));
  }
  if (experiment === page.experiment) return;
  page.experiment = experiment;
  select.value = experiment;
  pause();
  resume();
}

function unwatch() {
  pause();
  page.experiment = null;
  say("not connected");
}

// A browser has six connections for one server: a page that nobody sees gives its own back.
function pause() {
  if (page.stop) page.stop();
  page.stop = null;
}

function resume() {
  if (page.stop || !page.experiment || document.hidden) return;
  say("connecting");
  page.stop = follow(page.experiment, changed, say);
}

// Refresh the view at most once a second, however often the run changes.
function changed(event) {
  page.event = event;
  if (page.timer) return;
  page.timer = setTimeout(refresh, Math.max(0, page.last + REFRESH - Date.now()));
}

async function refresh() {
  page.timer = null;
  page.last = Date.now();
  const { view, turn } = page;
  if (!view || !view.refresh) return;
  try {
    await view.refresh(page.event);
  } catch {
    if (turn === page.turn && !page.timer) page.timer = setTimeout(refresh, RETRY); // the stream says whether the server answers
  }
}

// New experiments, and changes of those that are not followed, are looked for every few seconds.
async function lookAround() {
  if (document.hidden) return;
  const before = page.known.length;
  try {
    await list();
    if (!before && page.known.length) show();
    else if (page.view && page.view.several) await page.view.refresh(page.event);
  } catch { /* the stream says whether the server answers */ }
}

select.addEventListener("change", () => {
  location.hash = link(place().name, { experiment: select.value });
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after '#' names the view
  main.focus();
});
window.addEventListener("hashchange", show);
window.addEventListener("pagehide", pause);
window.addEventListener("pageshow", resume);
document.addEventListener("visibilitychange", () => (document.hidden ? pause() : resume()));

const ORDER = ["", "light", "dark"];
const NAMES = { "": "as the system", light: "light", dark: "dark" };
const theme = document.getElementById("theme");
function nameTheme() {
  const now = document.documentElement.dataset.theme || "";
  theme.setAttribute("aria-label", `Colours: ${NAMES[now]}`);
  theme.title = `Colours: ${NAMES[now]}`;
}
theme.addEventListener("click", () => {
  const now = document.documentElement.dataset.theme || "";
  const next = ORDER[(ORDER.indexOf(now) + 1) % ORDER.length];
  if (next) document.documentElement.dataset.theme = next;
  else delete document.documentElement.dataset.theme;
  localStorage.setItem("rl-swarm-theme", next);
  nameTheme();
  show();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);

takeToken();
nameTheme();
show();
setInterval(lookAround, LOOK_AROUND);
