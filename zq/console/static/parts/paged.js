// SPDX-License-Identifier: Apache-2.0
// Lists that come in pages: the first ones, as many as were asked for, again and again.

import { useState } from "preact/hooks";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { visible } from "../text.js";
import { html } from "./html.js";
import { Empty, waiting } from "./states.js";

const PAGE = 20;

/**
 * As `useLive`; `value` is the list of the items.
 * @param {string} path
 * @param {string} member of the answer that has them
 * @param {number} seconds
 * @param {object} [query]
 * @param {{ends?: boolean, load?: typeof get}} [more] `ends`: the last page has no link; else the first one that is not
 *   full is the last. `load`: asks for a page
 * @returns {ReturnType<typeof useLive> & {more: () => void}} `more` null: these are all
 */
export function usePaged(path, member, seconds, query = {}, { ends = false, load = get } = {}) {
  const [pages, setPages] = useState(1);
  const found = useLive(() => read((marker) => load(path, { limit: PAGE, ...query, marker }), member, pages, ends), seconds * pages, [path, pages]);
  const more = found.value?.more ? () => setPages(pages + 1) : null;
  return { ...found, value: found.value?.items, more };
}

async function read(load, member, pages, ends) {
  const items = [];
  let marker = "";
  for (let page = 0; page < pages; page += 1) {
    const answer = await load(marker);
    items.push(...answer[member]);
    const link = answer.links[0]?.href;
    if (!link || (!ends && answer[member].length < PAGE)) return { items, more: false };
    marker = new URL(link, location.href).searchParams.get("marker");
  }
  return { items, more: true };
}

/** The button below such a list. */
export function More({ found }) {
  return found.more && html`<button type="button" onClick=${found.more}>Load more</button>`;
}

/** A table. `columns`: what stands above each; a name with # before it is of numbers. */
export function Rows({ name, columns, children }) {
  return html`<div class="scroll" role="region" aria-label=${name} tabindex="0">
    <table class="cards plain">
      <thead><tr>${columns.map(heading)}</tr></thead>
      <tbody>${children}</tbody>
    </table>
  </div>`;
}

function heading(column) {
  return html`<th key=${column} scope="col" class=${column.startsWith("#") ? "number" : undefined}>${column.replace("#", "")}</th>`;
}

/** In place of a part: as `waiting`, and where the server has no such route, in its words. */
export function lacking(found) {
  const absent = found.fault && (found.fault.status === 404 || found.fault.title === "Not implemented");
  if (!absent) return waiting(found);
  return html`<${Empty} title="Not available on this server"><p>${visible(found.fault.description)}</p></${Empty}>`;
}
