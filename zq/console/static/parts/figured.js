// SPDX-License-Identifier: Apache-2.0
// Queues or topics with their figures, as the server has counted them: sorted, searched and paged there.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api.js";
import { useClock, useLive } from "../live.js";
import { at, go, parsed, useTyped } from "../route.js";
import { age, count, several } from "../text.js";
import { announce } from "./act.js";
import { html } from "./html.js";

// Seconds after which counts are called old.
const OLD = 10;

/**
 * The first page, asked for again and again; or a later one in the order of that first page, which stays as it is.
 * @param {import("../route.js").Route} route of the page `queues` or `topics`
 * @param {{usual: string, size: number, every: number}} how `usual`: what it is sorted by without being asked; `size`: rows
 *   of a page; `every`: seconds
 */
export function useFigured({ project, page: kind, query }, { usual, size, every }) {
  const { name = "", sort = usual, order = "" } = query;
  const asked = { kind, limit: size, name, sort, order };
  const [later, setLater] = useState(null);
  const [dropped, setDropped] = useState([]);
  const found = useLive(() => get("figures/queues", asked), every, [project, name, sort, order]);
  useEffect(() => setLater(null), [project, name, sort, order]);
  const page = later?.page ?? found.value;
  const next = page?.links[0] && new URL(page.links[0].href, location.href).searchParams.get("marker");
  const load = async () => {
    const following = await get("figures/queues", { ...asked, marker: next });
    setLater({ page: following, first: (later?.first ?? 1) + size });
  };
  const drop = (names) => {
    setDropped([...dropped, ...names.map((one) => ({ one, at: Date.now() }))]);
    found.again();
  };
  const lately = dropped.filter(({ at: when }) => page && Date.parse(page.as_of) < when + 1000).map(({ one }) => one);
  const rows = (page?.[kind] ?? []).filter((row) => !lately.includes(row.name));
  return { found, page, rows, next, load, drop, first: later?.first ?? 1, back: () => setLater(null) };
}

/** How many there are, and when they were counted. `noun`: queue or topic. */
export function Counted({ list, noun }) {
  const now = useClock();
  if (!list.page) return null;
  const old = (now - Date.parse(list.page.as_of)) / 1000;
  const partial = list.page.complete ? "" : " (only the queues that were counted)";
  return html`<span class="quiet">${several(list.page.total, noun)}${partial}, counted ${old > OLD ? `${age(old)} ago` : "just now"}</span>`;
}

/** The search for a part of a name. */
export function Search({ route, noun }) {
  const { name = "" } = route.query;
  const [text, setText] = useState(name);
  const search = useTyped((value) => at(route.project, route.page, { ...parsed(location.hash).query, name: value }));
  useEffect(() => setText(name), [name]);
  const typed = ({ target: { value } }) => {
    setText(value);
    search(value);
  };
  return html`<label class="search">
    <span class="hidden">Search for ${noun}s by name</span>
    <input type="search" data-search placeholder="Name contains  ( / )" autocomplete="off" spellcheck=${false} value=${text} onInput=${typed} />
  </label>`;
}

/** A header. `sort`: what it sorts by, "" if nothing; `usual`: what it is sorted by without being asked. */
export function Head({ route, name, sort, usual }) {
  const { sort: now = usual, order } = route.query;
  const kind = sort === "name" ? undefined : "number";
  if (!sort) return html`<th scope="col" class="number">${name}</th>`;
  const first = sort === "name" ? "asc" : "desc";
  const current = now === sort ? (order ?? first) : "";
  const other = current === first ? (first === "asc" ? "desc" : "asc") : "";
  const choose = () => go(at(route.project, route.page, { ...route.query, sort, order: other }), true);
  const said = { asc: "ascending", desc: "descending" }[current];
  return html`<th scope="col" class=${kind} aria-sort=${said}>
    <button type="button" class="plain" onClick=${choose}>${name}${current && html`<span aria-hidden="true">${current === "asc" ? " ▲" : " ▼"}</span>`}</button>
  </th>`;
}

/** Which rows these are, and the way to others. */
export function Pages({ list }) {
  const load = () => list.load().catch((fault) => announce(fault.message, true));
  const last = list.first + list.rows.length - 1;
  return html`<p class="row quiet">
    <span>${count(list.first)} to ${count(last)} of ${count(list.page.total)}.${list.first > 1 ? " This page does not refresh." : ""}</span>
    ${list.first > 1 && html`<button type="button" onClick=${list.back}>First page</button>`}
    ${list.next && html`<button type="button" onClick=${load}>Next page</button>`}
  </p>`;
}
