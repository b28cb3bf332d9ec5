// The frame of the page: which experiment, which view, and what is live.

import { ask, follow, takeToken } from "./api.js";
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
const LIST = 10000;

const main = document.getElementById("main");
const select = document.getElementById("experiment");
const live = document.getElementById("live");
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

function say(word) {
  live.textContent = word;
  live.dataset.state = word;
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
    const here = tab.getAttribute("href") === `#/${name}` || tab.dataset.name === name;
    tab.dataset.name = tab.dataset.name || tab.getAttribute("href").slice(2);
    if (here) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.title = `${TITLES[name]} – RL Swarm`;
  fill(main, state("Loading", "Reading the run."));
  main.setAttribute("aria-busy", "true");
  try {
    if (!page.known.length) await list();
    if (turn !== page.turn) return;
    const experiment = params.experiment || page.experiment || page.usual || "";
    watch(experiment);
    if (!experiment && name !== "experiments") {
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
  const title = error.status === 401 ? "A token is needed" : error.status === 404 ? "Not found" : "This cannot be shown now";
  fill(main, state(title, error.message || String(error), h("p", null, h("button", { type: "button", onclick: show }, "Try again"))));
  if (error.status !== 401 && error.status !== 404) page.timer = setTimeout(show, 5000);
}

function watch(experiment) {
  for (const tab of document.querySelectorAll("#tabs a")) {
    tab.dataset.name = tab.dataset.name || tab.getAttribute("href").slice(2).split("?")[0];
    tab.setAttribute("href", link(tab.dataset.name, { experiment }));
  }
  if (experiment === page.experiment) return;
  page.experiment = experiment;
  select.value = experiment;
  pause();
  resume();
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
  } catch (error) {
    if (turn === page.turn && error.name !== "AbortError") say("reconnecting");
  }
}

select.addEventListener("change", () => {
  const { name } = place();
  location.hash = link(VIEWS[name] ? name : "overview", { experiment: select.value });
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
setInterval(() => list().catch(() => {}), LIST);
