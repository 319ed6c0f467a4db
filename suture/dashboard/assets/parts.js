/* What all views need: elements of which every text is text, numbers as people read them, and the way to the server. */

export function el(name, given = {}, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value") made.value = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  put(made, ...content);
  return made;
}

export function put(element, ...content) {
  element.append(...content.flat().filter((one) => one !== null && one !== undefined && one !== false));
}

export const svg = (name, given, ...content) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(given)) made.setAttribute(key, value);
  made.append(...content);
  return made;
};

let known = null;
export async function hello() {
  known ??= await ask("/api/hello");
  return known;
}

export async function ask(address, content) {
  const given = content === undefined ? {} : {
    method: "POST",
    headers: { "content-type": "application/json", "x-suture-form": known ? known.form : "" },
    body: JSON.stringify(content),
  };
  let answer;
  try {
    answer = await fetch(address, given);
  } catch {
    throw new Refusal("the dashboard does not answer; is it still running?");
  }
  const told = await answer.json().catch(() => ({ error: `the dashboard answered ${answer.status}` }));
  if (!answer.ok || told.error) throw new Refusal(told.error, told.field);
  return told;
}

export class Refusal extends Error {
  constructor(text, field) {
    super(text);
    this.field = field;
  }
}

/* A stream of events, until `signal` ends it. A page that nobody looks at does not listen. */
export function listen(address, hear, signal) {
  let stream = null;
  const close = () => {
    if (stream) stream.close();
    stream = null;
  };
  const open = () => {
    if (stream || document.hidden || signal.aborted) return;
    stream = new EventSource(address);
    stream.addEventListener("first", (event) => hear("first", JSON.parse(event.data)));
    stream.addEventListener("more", (event) => hear("more", JSON.parse(event.data)));
  };
  const look = () => (document.hidden ? close() : open());
  document.addEventListener("visibilitychange", look, { signal });
  signal.addEventListener("abort", close);
  open();
}

export function say(text) {
  const line = document.getElementById("said");
  line.className = "";
  line.textContent = text;
}

export function complain(error) {
  if (!(error instanceof Refusal)) throw error;
  const line = document.getElementById("said");
  line.className = "problem";
  line.textContent = sentence(error.message);
}

export const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".") : "");

const three = (value) => value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0);
export const digits = (value) => (value === null ? "–" : three(value));
export function bytes(count) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (count >= size) return `${three(count / size)} ${unit}`;
  return `${Math.round(count)} B`;
}
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")} min`;
}
export function when(seconds) {
  if (!seconds) return "–";
  const date = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}
export function score(value, share, digits = 2) {
  if (value === null || value === undefined) return "–";
  return share ? (100 * value).toFixed(digits) : value.toFixed(behind(value, digits));
}
const behind = (value, digits = 2) => (Math.abs(value) < 100 ? digits + 1 : Math.abs(value) < 1000 ? 1 : 0);
export function spread(result, share) {
  if (result.mean === null) return "–";
  const mean = score(result.mean, share);
  if (result.deviation === null) return mean;
  return `${mean} ±${share ? score(result.deviation, share) : result.deviation.toFixed(behind(result.mean))}`;
}
export const count = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;
export const some = (names, most = 3) =>
  names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
export const measure = (row) => `${row.metric.replaceAll("_", " ")}${row.share ? " in %" : ""}`;

const SIGNS = { starting: "◌", running: "▶", finished: "✓", stopped: "■", failed: "✕", resumable: "‖", damaged: "!" };
export const badge = (row) =>
  el(
    "span",
    { class: `badge ${row.standing}` },
    el("span", { "aria-hidden": "true" }, SIGNS[row.standing] ?? "?"),
    ` ${row.stopping && (row.standing === "running" || row.standing === "starting") ? "stopping" : row.standing}`,
  );

export function bar(row) {
  const now = row.progress;
  if (!now || !now.total) return null;
  const runs = row.runs > 1 ? (row.runs_done + now.done / now.total) / row.runs : now.done / now.total;
  return el("progress", { max: 1, value: Math.min(1, runs), "aria-label": `Progress of ${row.name}` });
}

export function nowSaid(row) {
  const now = row.progress;
  if (!now || !now.total) return "";
  const which = row.runs > 1 ? `run ${Math.min(row.runs_done + 1, row.runs)} of ${row.runs}, ${now.method} seed ${now.seed}: ` : "";
  return `${which}${now.phase} ${now.done} of ${now.total}, ${now.left === null ? "time left unknown" : `${duration(now.left)} left`}`;
}

/* Vega and the report's script, when something is to be drawn. */
let drawer = null;
export function drawing() {
  const load = (address) =>
    new Promise((done, failed) => {
      // As a module: the many names at the top of Vega's script stay its own.
      const script = el("script", { src: address, type: "module" });
      script.addEventListener("load", done);
      script.addEventListener("error", () => failed(new Refusal("the figure's script could not be loaded")));
      document.head.append(script);
    });
  drawer ??= load("/static/vega.js")
    .then(() => load("/static/report.js"))
    .then(hello)
    .then((told) => {
      window.Suture.start(told.settings);
      return window.Suture;
    });
  return drawer;
}
