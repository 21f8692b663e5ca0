// SPDX-License-Identifier: Apache-2.0
// What the keyboard does besides Tab, Enter and Space, which reach everything.

import { useEffect } from "preact/hooks";
import { refresh } from "../live.js";
import { at, go } from "../route.js";
import { settings } from "../session.js";

/** What the list of keys says. */
export const KEYS = [
  ["/", "search"],
  ["g o, g q, g t, g c, g s", "overview, queues, topics, claims, server"],
  ["j, k", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["r", "refresh"],
  ["Esc", "close the open panel"],
  ["?", "show this list"],
];

let before = "";

/** Listen as long as the page is shown. `help`: opens the list of keys. */
export function useKeys(project, help) {
  useEffect(() => {
    const pressed = (event) => press(event, project, help);
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [project]);
}

function press(event, project, help) {
  const written = event.target.closest?.("input, textarea, select, dialog");
  if (written || event.ctrlKey || event.altKey || event.metaKey || !settings.keys) return;
  const keys = before === "g" ? `g ${event.key}` : event.key;
  before = event.key;
  const acts = {
    "/": () => document.querySelector("[data-search]")?.focus(),
    "g o": () => go(at(project, "overview")),
    "g q": () => go(at(project, "queues")),
    "g t": () => go(at(project, "topics")),
    "g c": () => go(at(project, "claims")),
    "g s": () => go(at(project, "server")),
    j: () => step(1),
    k: () => step(-1),
    x: () => current()?.querySelector("input[type=checkbox]")?.click(),
    r: refresh,
    Escape: () => document.querySelector("[data-close]")?.click(),
    "?": help,
  };
  if (!acts[keys]) return;
  event.preventDefault();
  acts[keys]();
}

function current() {
  return document.activeElement?.closest("[data-row]");
}

function step(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const row = rows.indexOf(current());
  const next = rows[row === -1 ? 0 : Math.min(rows.length - 1, Math.max(0, row + by))];
  next?.querySelector("a")?.focus();
}
