// SPDX-License-Identifier: Apache-2.0
// What a project uses, and of how much.

import { get } from "../api.js";
import { useLive } from "../live.js";
import { html } from "../parts/html.js";
import { lacking, Rows } from "../parts/paged.js";
import { Stale } from "../parts/states.js";
import { age, count, visible } from "../text.js";

const EVERY = 5;
const NEAR = 0.8;

/** The part of the caller's own project. */
export function Quota() {
  const found = useLive(() => get("quota"), EVERY, []);
  return lacking(found) ?? html`<${Stale} found=${found} /><${Use} value=${found.value} name="Quota" />`;
}

/** Each bound of its own, and what is used. `value`: as the interface answers; `name`: of the table. */
export function Use({ value, name }) {
  const { limits, used, exact } = value;
  return html`<p class="quiet">State: ${visible(value.state)}. Usage is up to ${age(value.age)} old. Requests, messages and bytes are per second.</p>
    <${Rows} name=${name} columns=${["Quota", "#Used", "#Limit", "Share"]}>
      ${Object.keys({ ...limits, ...used }).map((key) => html`<${Bound} key=${key} name=${key} used=${used[key]} exact=${exact[key]} limit=${limits[key]} />`)}
    </${Rows}>`;
}

function Bound({ name, used, exact, limit }) {
  const share = used !== undefined && limit > 0;
  return html`<tr>
    <th scope="row">${visible(name)}</th>
    <td class="number" data-name="Used">${used === undefined ? "–" : `${exact ? "" : "about "}${count(used)}`}</td>
    <td class="number" data-name="Limit">${limit === undefined ? "default" : limit ? count(limit) : "none"}</td>
    <td data-name="Share">
      ${share ? html`<meter aria-label=${`Share of ${name}`} max=${limit} value=${used} high=${limit * NEAR}></meter> ${Math.round((100 * used) / limit)} %` : "–"}
    </td>
  </tr>`;
}
