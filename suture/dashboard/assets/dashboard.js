/* Which view an address shows. Addresses are the part behind #, so that the server sees ids only in what is asked for. */

import { form } from "./form.js";
import { list } from "./list.js";
import { complain, hello } from "./parts.js";
import { compare, run } from "./run.js";

const main = document.getElementById("main");
let showing = null;
let first = true;

async function show() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  if (showing) showing.abort();
  showing = new AbortController();
  const { signal } = showing;
  const asked = new URLSearchParams(query ?? "");
  const place = document.createElement("div");
  main.replaceChildren(place);
  document.title = "Suture";
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === (path === "/new" ? "#/new" : "#/");
    if (here && (path === "/new" || !path || path === "/")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    await hello();
    if (path.startsWith("/run/")) await run(place, encodeURIComponent(path.slice(5)), signal);
    else if (path === "/compare") await compare(place, asked.getAll("id"), signal);
    else if (path === "/new") await form(place, signal);
    else await list(place, asked, signal);
  } catch (error) {
    complain(error);
  }
  // After the first view the keyboard's place follows what was chosen.
  if (!first && !signal.aborted) place.querySelector("h1")?.focus();
  first = false;
}

function theme() {
  const choice = document.querySelector("[data-theme-choice]");
  const set = (value) => {
    if (value === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = value;
  };
  choice.value = localStorage.getItem("suture-theme") ?? "auto";
  set(choice.value);
  choice.addEventListener("change", () => {
    localStorage.setItem("suture-theme", choice.value);
    set(choice.value);
  });
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
theme();
addEventListener("hashchange", show);
show();
