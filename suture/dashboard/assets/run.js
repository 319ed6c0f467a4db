/* One run or comparison: how far it is, its curves, what came out, what can be done with it; and several beside each other. */

import { Curves } from "./curves.js";
import { ask, badge, bar, bytes, complain, count, digits, duration, el, listen, measure, nowSaid, put, say, sentence, some, spread, when } from "./parts.js";

const fact = (title, text) => (text === "–" ? null : el("div", {}, el("dt", {}, title), el("dd", {}, text)));

function resultsTable(rows) {
  const lines = rows.flatMap((row) => row.results.map((one) => [row, one]));
  if (!lines.length) return el("p", { class: "soft" }, "No run is finished yet.");
  const several = rows.length > 1;
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Results" },
    el(
      "table",
      {},
      el("caption", {}, el("span", {}, `Test ${measure(rows[0])}, mean ± sample deviation over finished seeds`)),
      el("thead", {}, el("tr", {}, [...(several ? ["Run"] : []), "Method", "Seeds", "Result", "Validation", "MB up", "MB down", "Seconds"].map((title, number) => el("th", { scope: "col", class: number > (several ? 1 : 0) ? "number" : null }, title)))),
      el("tbody", {}, lines.map(([row, one]) =>
        el(
          "tr",
          {},
          several ? el("td", {}, row.name) : null,
          el("th", { scope: "row" }, one.method),
          [`${one.seeds} of ${row.seeds.length}`, spread(one, row.share), one.validation === null ? "–" : spread({ mean: one.validation, deviation: null }, row.share), digits(megabytes(one.bytes_up)), digits(megabytes(one.bytes_down)), digits(one.seconds)].map((text) => el("td", { class: "number" }, text)),
        ))),
    ),
  );
}

const megabytes = (count) => (count === null ? null : count / 1e6);

export async function run(main, id, signal) {
  const told = await ask(`/api/runs/${id}`);
  if (signal.aborted) return;
  let row = told.row;
  const curves = new Curves(told.figure, row.share);
  const name = row.name === "." ? "This folder" : row.name;
  const state = el("div", { class: "state", "aria-live": "polite" });
  const facts = el("dl", { class: "facts" });
  const buttons = el("div", { class: "buttons" });
  const results = el("div", {});
  const measured = el("div", {}, el("h2", {}, "Curves"), curves.element, el("h2", {}, "Results"), results);
  const owners = el("div", {});
  const audited = el("div", {});
  let happened = "";
  const log = el("pre", { tabindex: "0", role: "region", "aria-label": "Log" });
  const logged = el("details", { hidden: true, ontoggle: () => logged.open && again() }, el("summary", {}, "Log of the process that was started here"), log);
  document.title = `${name}, Suture`;
  put(
    main,
    el("p", { class: "back" }, el("a", { href: "#/" }, "All runs")),
    el("h1", { tabindex: "-1" }, name),
    state,
    buttons,
    facts,
    measured,
    owners,
    audited,
    logged,
  );

  async function again() {
    try {
      const anew = await ask(`/api/runs/${id}`);
      log.textContent = anew.log;
      showAudit(anew.audit);
      show(anew.row);
    } catch (error) {
      complain(error);
    }
  }

  async function change(what) {
    for (const button of buttons.querySelectorAll("button")) button.disabled = true;
    try {
      say(sentence((await ask(`/api/runs/${id}/${what}`, {})).said));
    } catch (error) {
      complain(error);
    }
    await again();
    main.querySelector("h1").focus();
  }

  function show(now) {
    row = now;
    const progress = bar(row);
    state.replaceChildren(
      badge(row),
      ...(row.note ? [el("p", { class: "note" }, sentence(row.note))] : []),
      ...(progress ? [progress, el("p", { class: "now" }, nowSaid(row))] : []),
    );
    const wanted = JSON.stringify([row.can_stop, row.can_resume, row.can_report, row.stopping]);
    if (buttons.dataset.is !== wanted) {
      buttons.dataset.is = wanted;
      const made = [];
      if (row.can_stop) made.push(el("button", { type: "button", onclick: () => change("stop") }, row.stopping ? "Stop at once" : "Stop after this round"));
      if (row.can_resume) made.push(el("button", { type: "button", class: "main", onclick: () => change("resume") }, "Resume"));
      if (row.can_report) made.push(el("a", { class: "button", href: `/runs/${id}/report`, target: "_blank", rel: "noopener" }, "Open report"));
      buttons.replaceChildren(...made);
    }
    const sent = row.progress?.total ? row.progress : null;
    facts.replaceChildren();
    put(
      facts,
      fact("Methods", some(row.methods, 12) || "–"),
      fact("Data", row.dataset || "–"),
      fact("Protocol", row.protocol || "–"),
      fact("Clients", row.clients ? String(row.clients) : "–"),
      fact("Seeds", some(row.seeds.map(String), 8) || "–"),
      fact("Runs", row.runs > 1 ? `${row.runs_done} of ${row.runs} finished` : row.runs_done ? "finished" : "not finished"),
      fact("Time", row.seconds ? duration(row.seconds) : "–"),
      fact("Sent", sent ? `${bytes(sent.bytes_up)} up, ${bytes(sent.bytes_down)} down` : "–"),
      fact("Owners present", sent && sent.owners ? `${sent.owners - Object.keys(sent.absent).length} of ${sent.owners}` : row.kind === "federation" ? "–" : "all, in this process"),
      fact("Begun", when(row.began)),
      fact("Size", bytes(row.size)),
    );
    results.replaceChildren(resultsTable([row]));
    facts.hidden = measured.hidden = row.standing === "damaged"; // of such a folder nothing is known
    owners.replaceChildren(...federation(row));
    logged.hidden = !log.textContent;
  }

  // The audit is read again when something has happened, and stays open where it was.
  function showAudit(lines) {
    const open = audited.querySelector("details")?.open ?? false;
    audited.replaceChildren(...[audit(lines, open)].filter(Boolean));
  }
  const whatHappened = (now) => JSON.stringify([now.standing, now.progress?.absent, now.progress?.remarks]);

  log.textContent = told.log;
  say("");
  showAudit(told.audit);
  happened = whatHappened(row);
  show(row);
  curves.draw();
  listen(`/api/runs/${id}/events`, (kind, event) => {
    if (event.over) return complainOver(event.over);
    show({ ...event.row, stopping: row.stopping && ["running", "starting"].includes(event.row.standing) });
    curves.hear(kind, event, id);
    if (row.kind === "federation" && happened !== whatHappened(row)) {
      happened = whatHappened(row);
      again();
    }
  }, signal);
  const complainOver = (text) => say(sentence(text));
}

function federation(row) {
  const now = row.progress;
  if (!now?.owners) return [];
  const absent = Object.entries(now.absent);
  return [
    el("h2", {}, "Owners"),
    el("p", {}, `${now.owners - absent.length} of ${now.owners} are present.`),
    absent.length ? el("ul", { class: "notes" }, absent.map(([owner, why]) => el("li", {}, `${owner}: ${why}`))) : null,
    now.remarks.length ? el("details", { open: true }, el("summary", {}, "What happened"), el("ul", { class: "notes" }, now.remarks.map((text) => el("li", {}, text)))) : null,
  ].filter(Boolean);
}

function audit(lines, open) {
  if (!lines.length) return null;
  return el(
    "details",
    { open },
    el("summary", {}, `Audit of the coordinator, the last ${count(lines.length, "line")}`),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Audit" }, el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ["Time", "Event", "Owner", "Why"].map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, lines.map((line) => el("tr", {}, [line.time, line.event, line.owner, line.reason].map((text, number) => el("td", { class: number === 3 ? "long" : null }, text ?? ""))))),
    )),
  );
}

export async function compare(main, ids, signal) {
  const told = await ask(`/api/curves?${ids.map((id) => `id=${encodeURIComponent(id)}`).join("&")}`);
  if (signal.aborted) return;
  const curves = new Curves(told.figure, told.rows[0].share);
  const protocols = new Set(told.rows.map((row) => `${row.protocol} ${row.dataset} ${row.metric} ${row.clients}`));
  document.title = "Compare, Suture";
  put(
    main,
    el("p", { class: "back" }, el("a", { href: "#/" }, "All runs")),
    el("h1", { tabindex: "-1" }, `${count(told.rows.length, "run")} side by side`),
    protocols.size > 1 ? el("p", { class: "problem" }, "These were run on other data, with other clients, under other protocols or with other metrics: do not compare their numbers with each other.") : null,
    el("ul", { class: "notes" }, told.rows.map((row) => el("li", {}, el("a", { href: `#/run/${row.id}` }, row.name), `: ${some(row.methods)} on ${row.dataset}, ${row.protocol} `, badge(row)))),
    el("h2", {}, "Results"),
    resultsTable(told.rows),
    el("h2", {}, "Curves"),
    curves.element,
  );
  say("");
  curves.hear("first", told);
  const live = () => told.rows.some((row) => ["running", "starting"].includes(row.standing));
  const timer = setInterval(async () => {
    if (document.hidden || !live()) return;
    try {
      const anew = await ask(`/api/curves?${ids.map((id) => `id=${encodeURIComponent(id)}`).join("&")}`);
      told.rows = anew.rows;
      curves.hear("first", anew);
    } catch (error) {
      complain(error);
    }
  }, 3000);
  signal.addEventListener("abort", () => clearInterval(timer));
}
