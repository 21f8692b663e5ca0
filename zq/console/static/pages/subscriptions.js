// SPDX-License-Identifier: Apache-2.0
// The subscriptions of a project or of one source, and the deliveries of one subscription.

import { useState } from "preact/hooks";
import { call } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { copy } from "../parts/body.js";
import { ask, given } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { More, Rows, usePaged } from "../parts/paged.js";
import { NameInput } from "../parts/queuenames.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { at, go, to, toTopic } from "../route.js";
import { age, bounded, visible } from "../text.js";
import { Deliveries } from "./deliveries.js";

const EVERY = 5;
// Deliveries up to which the listing of a project counts.
const COUNTED = 1000;

/** The page. */
export function Subscriptions({ route }) {
  const { queue, topic } = route.query;
  const name = queue ?? topic;
  const kind = topic === undefined ? "queue" : "topic";
  const [created, setCreated] = useState(null);
  const create = () => askToCreate({ kind, name }, setCreated);
  return html`<div class="title">
      <h1>Subscriptions</h1><${Act} rule="subscription:create" kind="main" onClick=${create}>Create a subscription…</${Act}>
    </div>
    <${Chooser} project=${route.project} kind=${kind} name=${name} />
    ${created?.secret && html`<${Secret} created=${created} forget=${() => setCreated(null)} />`}
    ${name ? html`<${OfSource} key=${created?.subscription_id} route=${route} kind=${kind} name=${name} />` : html`<${OfProject} key=${created?.subscription_id} project=${route.project} />`}`;
}

/** The secret of a new subscription, which the server shows only once. */
function Secret({ created, forget }) {
  return html`<div class="state secret" role="status">
    <p class="state-title">Signing secret for ${visible(created.subscriber)}</p>
    <p>The secret is shown only once. Use it to verify the signature of deliveries.</p>
    <p><code>${created.secret}</code></p>
    <p class="row"><button type="button" onClick=${() => copy(created.secret, "The secret")}>Copy</button> <button type="button" onClick=${forget}>Close</button></p>
  </div>`;
}

function Kind({ id, value, set }) {
  return html`<select id=${id} value=${value} onChange=${(event) => set(event.target.value)}>
    <option value="queue">queue</option><option value="topic">topic</option>
  </select>`;
}

function Chooser({ project, kind, name = "" }) {
  const [chosen, setChosen] = useState({ kind, name });
  const open = (event) => {
    event.preventDefault();
    const source = chosen.name.trim();
    go(at(project, "subscriptions", source ? { [chosen.kind]: source } : {}));
  };
  return html`<form class="row bottom tools" onSubmit=${open}>
    <label class="field short"><span>Source</span><${Kind} value=${chosen.kind} set=${(value) => setChosen({ ...chosen, kind: value })} /></label>
    <label class="field short"><span>Name (empty: all)</span>
      <${NameInput} id="source" data-search kind=${`${chosen.kind}s`} text=${chosen.name} change=${(text) => setChosen({ ...chosen, name: text })} />
    </label>
    <button type="submit" class="field">Show</button>
  </form>`;
}

function askToCreate(source, created) {
  const act = async () => {
    const subscriber = given("new-subscriber");
    const terms = { subscriber, ...(given("new-ttl") && { ttl: Number(given("new-ttl")) }) };
    const path = `${given("new-kind")}s/${encodeURIComponent(given("new-source"))}/subscriptions`;
    const { text } = await call("POST", path, { body: JSON.stringify(terms) });
    created({ subscriber, ...JSON.parse(text) });
    announce("The subscription was created.");
  };
  ask({ title: "Create a subscription", verb: "Create", harmless: true, body: html`<${NewFields} ...${source} />`, act });
}

function NewFields({ kind, name = "" }) {
  const [source, setSource] = useState({ kind, name });
  return html`<label class="field"><span>Source</span><${Kind} id="new-kind" value=${source.kind} set=${(value) => setSource({ ...source, kind: value })} /></label>
    <label class="field"><span>Name of the queue or topic</span>
      <${NameInput} id="new-source" required kind=${`${source.kind}s`} text=${source.name} change=${(text) => setSource({ ...source, name: text })} />
    </label>
    <label class="field"><span>Subscriber (http, https or mailto URL)</span><input type="text" id="new-subscriber" autocomplete="off" spellcheck=${false} required /></label>
    <label class="field"><span>Expires after seconds, at least 60 (empty: the server's default)</span><input type="text" id="new-ttl" inputmode="numeric" pattern="[0-9]+" autocomplete="off" /></label>`;
}

/** All subscriptions, with links to the page of each. */
function OfProject({ project }) {
  const found = usePaged("subscriptions", "subscriptions", EVERY);
  const row = (one) => html`<tr key=${one.id} data-row>
    <th scope="row"><a href=${at(project, "subscriptions", { [one.kind]: one.source, s: one.id })}>${visible(one.subscriber)}</a></th>
    <td data-name="Source">${one.kind} <a href=${(one.kind === "queue" ? to : toTopic)(project, one.source)}>${visible(one.source)}</a></td>
    <td data-name="State">${state(one)}</td>
    <td class="number" data-name="Pending">${bounded(one.waiting, one.waiting >= COUNTED)}</td>
    <td class="number" data-name="Failed">${bounded(one.dead, one.dead >= COUNTED)}</td>
    <td class="number" data-name="Expires in">${age(Math.max(0, one.ttl - one.age))}</td>
  </tr>`;
  const columns = ["Subscriber", "Source", "State", "#Pending", "#Failed", "#Expires in"];
  return html`<${Stale} found=${found} />
    ${waiting(found) ?? (found.value.length ? html`<${Rows} name="Subscriptions" columns=${columns}>${found.value.map(row)}</${Rows}>` : html`<${Nothing} />`)}
    <${More} found=${found} />`;
}

function OfSource({ route, kind, name }) {
  const { project, query } = route;
  const path = `${kind}s/${encodeURIComponent(name)}/subscriptions`;
  const found = usePaged(path, "subscriptions", EVERY);
  const address = (id) => at(project, "subscriptions", { [kind]: name, s: id });
  const one = found.value?.find((each) => each.id === query.s);
  return html`<p>Subscriptions of the ${kind} <a href=${(kind === "queue" ? to : toTopic)(project, name)}>${visible(name)}</a>. <a href=${at(project, "subscriptions")}>Show all subscriptions</a></p>
    <${Stale} found=${found} />
    ${waiting(found) ?? html`<${Table} items=${found.value} open=${query.s} address=${address} />`}
    <${More} found=${found} />
    ${one && html`<${One} key=${one.id} item=${one} path=${`${path}/${one.id}`} changed=${found.again} away=${() => go(address(""))} />`}
    ${found.value && query.s && !one && html`<${Empty} title="Subscription not found"><p>The subscription expired or was deleted.</p></${Empty}>`}`;
}

function Nothing() {
  return html`<${Empty} title="No subscriptions">
    <p>A subscriber receives each posted message by webhook or email. Example: <code>zq subscription create jobs mailto:me@example.org</code></p>
  </${Empty}>`;
}

function Table({ items, open, address }) {
  if (!items.length) return html`<${Nothing} />`;
  return html`<${Rows} name="Subscriptions" columns=${["Subscriber", "State", "#Age", "#Expires in"]}>
    ${items.map((one) => html`<${Row} key=${one.id} item=${one} open=${open} address=${address} />`)}
  </${Rows}>`;
}

function Row({ item: one, open, address }) {
  return html`<tr data-row class=${one.id === open ? "opened" : undefined}>
    <th scope="row"><a href=${address(one.id)}>${visible(one.subscriber)}</a></th>
    <td data-name="State">${state(one)}</td>
    <td class="number" data-name="Age">${age(one.age)}</td>
    <td class="number" data-name="Expires in">${age(Math.max(0, one.ttl - one.age))}</td>
  </tr>`;
}

function state(one) {
  return one.confirmed ? html`<span class="mark">active</span>` : html`<span class="mark delayed">not confirmed</span>`;
}

function One({ item: one, path, changed, away }) {
  return html`<section class="message" aria-label="One subscription">
    <div class="title">
      <h2>${visible(one.subscriber)}</h2>
      <button type="button" data-close onClick=${away}>Close</button>
    </div>
    <dl class="facts">
      <div><dt>Id</dt><dd class="id">${visible(one.id)}</dd></div>
      <div><dt>State</dt><dd>${state(one)}</dd></div>
      <div><dt>Options</dt><dd><code>${visible(JSON.stringify(one.options))}</code></dd></div>
    </dl>
    <div class="row tools"><${Acts} item=${one} path=${path} changed=${changed} away=${away} /></div>
    <${Deliveries} path=${path} />
  </section>`;
}

function Acts({ item: one, path, changed, away }) {
  const agree = () => agreed(path, true, "The subscription is active.", changed).catch((fault) => announce(fault.message, true));
  const test = () => call("POST", `${path}/deliveries`, {}).then(() => announce("The server is sending a test delivery."), (fault) => announce(fault.message, true));
  return html`${!one.confirmed && html`<${Act} rule="subscription:confirm" kind="main" onClick=${agree}>Confirm</${Act}>`}
    <${Act} rule="subscription:update" when=${one.confirmed} why="The subscription is not confirmed." onClick=${test}>Test delivery</${Act}>
    ${one.confirmed && html`<${Act} rule="subscription:confirm" onClick=${() => askToPause(one, path, changed)}>Pause…</${Act}>`}
    <${Act} rule="subscription:delete" kind="danger" onClick=${() => askToEnd(one, path, changed, away)}>Delete…</${Act}>`;
}

async function agreed(path, confirmed, text, changed) {
  await call("PUT", `${path}/confirm`, { body: JSON.stringify({ confirmed }) });
  announce(text);
  changed();
}

function askToPause(one, path, changed) {
  const body = html`<p>${visible(one.subscriber)} receives no messages until you confirm the subscription again. Messages posted during the pause are not delivered later.</p>`;
  const act = () => agreed(path, false, "The subscription is paused.", changed);
  ask({ title: "Pause a subscription", verb: "Pause", body, act });
}

function askToEnd(one, path, changed, away) {
  const body = html`<p>The subscription of ${visible(one.subscriber)} is deleted with its pending and failed deliveries. The messages in the ${one.kind ?? "queue or topic"} are kept.</p>`;
  const act = async () => {
    await call("DELETE", path);
    announce("The subscription was deleted.");
    away();
    changed();
  };
  ask({ title: "Delete a subscription", verb: "Delete", body, act });
}
