// SPDX-License-Identifier: Apache-2.0
// What a page shows in place of its figures, or above them: loading, empty, fault, no permission, store or server gone.

import { useEffect, useState } from "preact/hooks";
import { trouble, refresh } from "../live.js";
import { clock, visible } from "../text.js";
import { html } from "./html.js";

const SKELETON_AFTER = 200;

/** Grey lines, once it takes longer than the eye. */
export function Loading() {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), SKELETON_AFTER);
    return () => clearTimeout(timer);
  }, []);
  if (!late) return html`<div class="loading" aria-busy="true"></div>`;
  return html`<div class="loading" aria-busy="true">
    <p class="quiet">Loading…</p>
    <div class="bone"></div>
    <div class="bone"></div>
    <div class="bone"></div>
  </div>`;
}

/** Nothing is there: what that means, and what changes it. */
export function Empty({ title, children }) {
  return html`<div class="state empty">
    <p class="state-title">${title}</p>
    ${children}
  </div>`;
}

/** What the server refused, in its own words. */
export function Fault({ fault, again }) {
  const forbidden = fault.status === 403;
  return html`<div class=${`state ${forbidden ? "forbidden" : "fault"}`} role="alert">
    <p class="state-title">${forbidden ? "No permission" : visible(fault.title)}</p>
    <p>${visible(fault.description || fault.message)}</p>
    ${fault.request && html`<p class="quiet">Request ${visible(fault.request)}</p>`}
    ${again && html`<p><button type="button" onClick=${again}>Try again</button></p>`}
  </div>`;
}

/** In place of what `useLive` has found, as long as it has found nothing; else null. */
export function waiting(found) {
  if (found.value !== undefined) return null;
  return found.fault ? html`<${Fault} fault=${found.fault} again=${found.again} />` : html`<${Loading} />`;
}

/** Above figures that were there: why they are not fresh. */
export function Stale({ found }) {
  if (!found.fault || found.fault.passing) return null;
  return html`<${Fault} fault=${found.fault} again=${found.again} />`;
}

/** Above every page: the store or the server is away, since when. */
export function Banner() {
  const { fault, since } = trouble;
  if (!fault) return html`<div role="status"></div>`;
  const gone = fault.status === 0;
  return html`<div role="status">
    <div class=${`banner ${gone ? "gone" : "down"}`}>
      <strong>${gone ? visible(fault.title) : fault.status === 503 ? "The store is unavailable" : visible(fault.title)}</strong>
      <span>${visible(fault.description)} Since ${clock(since)}. The figures are out of date and refresh automatically.</span>
      <button type="button" onClick=${refresh}>Try again</button>
    </div>
  </div>`;
}
