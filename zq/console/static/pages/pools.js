// SPDX-License-Identifier: Apache-2.0
// Pools, the stores of a deployment that has several, and flavors, by which queues choose among them.

import { call } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { lacking, More, Rows, usePaged } from "../parts/paged.js";
import { Empty, Stale } from "../parts/states.js";
import { count, visible } from "../text.js";

const EVERY = 5;

const POOL = { name: "", uri: "", weight: "100", flavor: "" };
const FLAVOR = { name: "", pools: "" };

/** The part. */
export function Pools() {
  return html`<${Listing} kind="pool" columns=${["Name", "Store", "#Weight", "Flavor", "Actions"]} One=${Pool} fields=${POOL} written=${writtenPool} />`;
}

function Pool({ item: one, done }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.name)}</th>
    <td data-name="Store">${visible(one.uri)}</td>
    <td class="number" data-name="Weight">${count(one.weight)}</td>
    <td data-name="Flavor">${visible(one.flavor ?? "–")}</td>
    <td><${Remove} kind="pool" name=${one.name} done=${done} /></td>
  </tr>`;
}

function writtenPool({ uri, weight, flavor }) {
  return { uri, weight: Number(weight), ...(flavor && { flavor }) };
}

/** The part. */
export function Flavors() {
  return html`<${Listing} kind="flavor" columns=${["Name", "Pools", "Actions"]} One=${Flavor} fields=${FLAVOR} written=${writtenFlavor} />`;
}

function Flavor({ item: one, done }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.name)}</th>
    <td data-name="Pools">${visible((one.pool_list ?? []).join(", ") || "none")}</td>
    <td><${Remove} kind="flavor" name=${one.name} done=${done} /></td>
  </tr>`;
}

function writtenFlavor({ pools }) {
  return { pool_list: pools.split(",").map((name) => name.trim()).filter(Boolean) };
}

function Listing({ kind, columns, One, fields, written }) {
  const found = usePaged(`${kind}s`, `${kind}s`, EVERY);
  const absent = lacking(found);
  if (absent) return absent;
  return html`<div class="row tools"><${Act} rule=${`${kind}s:create`} kind="main" onClick=${() => askToMake(kind, fields, written, found.again)}>Create a ${kind}…</${Act}></div>
    <${Stale} found=${found} />
    ${found.value.length > 0 && html`<${Rows} name=${`${kind}s`} columns=${columns}>${found.value.map((one) => html`<${One} key=${one.name} item=${one} done=${found.again} />`)}</${Rows}>`}
    ${found.value.length === 0 && html`<${Empty} title=${`No ${kind}s`}><p>To create one, use the button above.</p></${Empty}>`}
    <${More} found=${found} />`;
}

function field([name, value]) {
  return html`<label class="field" key=${name}>
    <span>${name}</span><input type="text" autocomplete="off" spellcheck=${false} data-field=${name} defaultValue=${value} />
  </label>`;
}

function askToMake(kind, fields, written, done) {
  const act = async () => {
    const given = [...document.querySelectorAll("dialog [data-field]")].map((input) => [input.dataset.field, input.value.trim()]);
    const { name, ...rest } = Object.fromEntries(given);
    await call("PUT", `${kind}s/${encodeURIComponent(name)}`, { body: JSON.stringify(written(rest)) });
    announce(`The ${kind} was created.`);
    done();
  };
  ask({ title: `Create a ${kind}`, verb: "Create", harmless: true, body: html`${Object.entries(fields).map(field)}`, act });
}

function Remove({ kind, name, done }) {
  const body = html`<p>${kind === "pool" ? "A pool that contains queues or is used by a flavor cannot be deleted." : "The pools of the flavor are kept."}</p>`;
  const act = async () => {
    await call("DELETE", `${kind}s/${encodeURIComponent(name)}`);
    announce(`The ${kind} was deleted.`);
    done();
  };
  const open = () => ask({ title: `Delete the ${kind} ${visible(name)}`, verb: "Delete", typed: name, body, act });
  return html`<${Act} rule=${`${kind}s:delete`} kind="danger" aria-label=${`Delete ${visible(name)}…`} onClick=${open}>Delete…</${Act}>`;
}
