// Ask the server. The token comes after '#' in the address, which browsers keep to themselves, and goes into a header.

const KEPT = "rl-swarm-token";
const FIRST_PAUSE = 500;
const LONGEST_PAUSE = 8000;
const SILENT = 40000; // the server says something at least every 15 s

export class Problem extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export function takeToken() {
  const found = /^#token=(.+)/.exec(location.hash);
  if (!found) return;
  let token = found[1];
  try {
    token = decodeURIComponent(token);
  } catch { /* a token with a percent sign of its own */ }
  keepToken(token);
  history.replaceState(null, "", `${location.pathname}#/overview`);
}

export function hasToken() {
  return sessionStorage.getItem(KEPT) !== null;
}

export function keepToken(token) {
  sessionStorage.setItem(KEPT, token);
}

function headers() {
  const token = sessionStorage.getItem(KEPT);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

export function query(path, params) {
  const filled = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(filled.flatMap(([name, value]) => (Array.isArray(value) ? value.map((each) => [name, each]) : [[name, value]])));
  return `/api/${path}?${search}`;
}

export async function ask(path, params = {}) {
  let answer;
  try {
    answer = await fetch(query(path, params), { headers: headers(), cache: "no-cache" });
  } catch {
    throw new Problem("The server does not answer. Is 'rl-swarm web' still running?", 0);
  }
  if (!answer.ok) {
    let detail = `The server answered with ${answer.status}.`;
    try {
      const said = (await answer.json()).detail;
      if (typeof said === "string") detail = said;
    } catch { /* no JSON: the status says enough */ }
    throw new Problem(detail, answer.status);
  }
  return answer.json();
}

// Follow the changes of a run until stopped; connect again after a break.
export function follow(experiment, onChange, onState) {
  const stop = new AbortController();
  let pause = FIRST_PAUSE;
  (async () => {
    while (!stop.signal.aborted) {
      try {
        await read(experiment, stop.signal, (event) => { pause = FIRST_PAUSE; onState("live"); onChange(event); });
      } catch (error) {
        if (stop.signal.aborted) return;
      }
      if (stop.signal.aborted) return;
      onState("reconnecting");
      await new Promise((resolve) => setTimeout(resolve, pause));
      pause = Math.min(LONGEST_PAUSE, 2 * pause);
    }
  })();
  return () => stop.abort();
}

async function read(experiment, signal, onEvent) {
  const own = new AbortController();
  const end = () => own.abort();
  signal.addEventListener("abort", end);
  let watchdog = setTimeout(end, SILENT);
  try {
    const answer = await fetch(query("events", { experiment }), { headers: headers(), cache: "no-store", signal: own.signal });
    if (!answer.ok) throw new Problem(`The stream ended with ${answer.status}.`, answer.status);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let kept = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(watchdog);
      watchdog = setTimeout(end, SILENT);
      kept += value;
      const events = kept.split("\n\n");
      kept = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (data) onEvent(JSON.parse(data));
      }
    }
  } finally {
    clearTimeout(watchdog);
    signal.removeEventListener("abort", end);
  }
}
