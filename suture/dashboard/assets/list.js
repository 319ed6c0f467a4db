/* The list of runs. */

import { ask, badge, bar, bytes, complain, count, duration, el, listen, measure, nowSaid, say, some, spread, when } from "./parts.js";

const STANDINGS = ["running", "starting", "finished", "stopped", "resumable", "failed", "damaged"];

export async function list(main, query, signal) {
  const state = { page: Number(query.get("page") ?? 0), standing: query.get("standing") ?? "", q: query.get("q") ?? "" };
  const chosen = new Set();
  const body = el("tbody", {});
  const filters = el("div", { class: "filters", role: "group", "aria-label": "Show" });
  const pager = el("div", { class: "pager" });
  const empty = el("p", { class: "soft", id: "empty" });
  const compare = el("button", { type: "button", disabled: true, onclick: () => (location.hash = `#/compare?${[...chosen].map((id) => `id=${id}`).join("&")}`) }, "Compare");
  const search = el("input", { type: "search", id: "search", value: state.q, autocomplete: "off", oninput: () => searchSoon() });
  let known = new Map();

  const choose = () => {
    compare.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
    compare.disabled = chosen.size < 2;
  };

  const table = el(
    "table",
    { class: "runs" },
    el("caption", { class: "hidden" }, "Runs and comparisons, the newest first"),
    el(
      "thead",
      {},
      el("tr", {}, ["", "Run", "State", "Methods", "Data", "Seeds", "Result", "Time", "Size", "Begun"].map((title) =>
        title ? el("th", { scope: "col" }, title) : el("td", {}, el("span", { class: "hidden" }, "Choose")))),
    ),
    body,
  );

  main.append(
    el("div", { class: "heading" }, el("h1", { tabindex: "-1" }, "Runs"), el("a", { class: "button", href: "#/new" }, "New run")),
    el("div", { class: "tools" }, filters, el("label", { for: "search" }, "Search ", search), compare),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table of runs" }, table),
    empty,
    pager,
  );

  let waiting = 0;
  const searchSoon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      state.q = search.value;
      state.page = 0;
      load();
    }, 200);
  };

  const show = (standing) => {
    state.standing = standing;
    state.page = 0;
    load();
  };

  function filter(title, standing, number) {
    return el("button", { type: "button", "aria-pressed": String(state.standing === standing), "data-standing": standing, onclick: () => show(standing) }, `${title} ${number}`);
  }

  function line(row) {
    const best = row.results.find((one) => one.method === row.chosen) ?? row.results[0];
    const result = best
      ? [el("strong", {}, spread(best, row.share)), " ", el("span", { class: "soft" }, row.methods.length > 1 ? `${best.method}, ` : "", measure(row))]
      : ["–"];
    const cell = (label, ...content) => el("td", { "data-label": label }, ...content);
    const name = row.name === "." ? "this folder" : row.name;
    return el(
      "tr",
      { "data-id": row.id },
      el("td", { class: "choose" }, el("input", {
        type: "checkbox",
        "aria-label": `Choose ${name}`,
        checked: chosen.has(row.id),
        disabled: row.standing === "damaged",
        onchange: (event) => {
          if (event.target.checked) chosen.add(row.id);
          else chosen.delete(row.id);
          choose();
        },
      })),
      el("th", { scope: "row" }, el("a", { href: `#/run/${row.id}` }, name), row.kind !== "run" ? el("span", { class: "soft kind" }, row.kind) : null),
      cell("State", badge(row), bar(row), nowSaid(row) ? el("div", { class: "now" }, nowSaid(row)) : null, row.note ? el("div", { class: "note" }, row.note) : null),
      cell("Methods", some(row.methods) || "–"),
      cell("Data", row.dataset || "–", row.protocol ? el("div", { class: "soft" }, row.protocol) : null, row.clients ? el("div", { class: "soft" }, count(row.clients, "client")) : null),
      cell("Seeds", some(row.seeds.map(String), 5) || "–"),
      cell("Result", ...result),
      cell("Time", row.seconds ? duration(row.seconds) : "–"),
      cell("Size", row.size ? bytes(row.size) : "–"),
      cell("Begun", when(row.began)),
    );
  }

  // A line is replaced only if it differs, and keeps the keyboard's place.
  function put(row) {
    const text = JSON.stringify(row);
    if (known.get(row.id) === text) return;
    const before = body.querySelector(`tr[data-id="${row.id}"]`);
    if (!before) return;
    const focused = before.contains(document.activeElement) ? document.activeElement.tagName : null;
    const after = line(row);
    before.replaceWith(after);
    if (focused) after.querySelector(focused)?.focus();
    known.set(row.id, text);
  }

  async function load() {
    const wanted = new URLSearchParams({ page: state.page, standing: state.standing, q: state.q });
    let told;
    try {
      told = await ask(`/api/runs?${wanted}`);
    } catch (error) {
      return complain(error);
    }
    if (signal.aborted) return;
    const had = document.activeElement?.dataset?.standing;
    filters.replaceChildren(filter("All", "", told.all), ...STANDINGS.filter((one) => told.counts[one] || state.standing === one).map((one) => filter(one[0].toUpperCase() + one.slice(1), one, told.counts[one])));
    if (had !== undefined) filters.querySelector(`[data-standing="${had}"]`)?.focus();
    known = new Map(told.rows.map((row) => [row.id, JSON.stringify(row)]));
    body.replaceChildren(...told.rows.map(line));
    table.hidden = !told.rows.length;
    empty.textContent = told.rows.length ? "" : told.all ? "No run is like that." : "There are no runs yet. Start one with “New run”, or in a terminal: suture run --dataset cora";
    const pages = Math.ceil(told.found / told.per);
    const turn = (title, by, usable) => el("button", { type: "button", disabled: !usable, onclick: () => { state.page += by; load(); } }, title);
    pager.replaceChildren(...(pages > 1 ? [turn("Previous", -1, state.page > 0), el("span", {}, `Page ${state.page + 1} of ${pages}`), turn("Next", 1, state.page + 1 < pages)] : []));
    choose();
  }

  say("");
  await load();
  listen("/api/events", (kind, event) => {
    if (kind === "first") return;
    const here = event.rows.filter((row) => known.has(row.id));
    const moved = event.rows.some((row) => !known.has(row.id) || JSON.parse(known.get(row.id)).standing !== row.standing);
    if (moved || event.gone.length) load();
    else here.forEach(put);
  }, signal);
}
