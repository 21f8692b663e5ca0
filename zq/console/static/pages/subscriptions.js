// SPDX-License-Identifier: Apache-2.0
// Who gets the messages of a queue or a topic, and what became of what was to be delivered to him.

import { useState } from "preact/hooks";
import { call } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { More, Rows, usePaged } from "../parts/paged.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { at, go, to, toTopic } from "../route.js";
import { age, visible } from "../text.js";
import { Deliveries } from "./deliveries.js";

const EVERY = 5;

/** The page. */
export function Subscriptions({ route }) {
  const { queue, topic } = route.query;
  const name = queue ?? topic;
  const kind = queue === undefined ? "topic" : "queue";
  const about = name && html`<p>Of the ${kind} <a href=${(kind === "queue" ? to : toTopic)(route.project, name)}>${visible(name)}</a>.</p>`;
  return html`<div class="title"><h1>Subscriptions</h1></div>
    <${Chooser} project=${route.project} kind=${kind} name=${name} />
    ${about} ${name && html`<${Listed} route=${route} kind=${kind} path=${`${kind}s/${encodeURIComponent(name)}/subscriptions`} />`}`;
}

function Chooser({ project, kind, name = "" }) {
  const [chosen, setChosen] = useState({ kind, name });
  const open = (event) => {
    event.preventDefault();
    if (chosen.name.trim()) go(at(project, "subscriptions", { [chosen.kind]: chosen.name.trim() }));
  };
  return html`<form class="row bottom tools" onSubmit=${open}>
    <label class="field short"><span>Of a</span>
      <select value=${chosen.kind} onChange=${(event) => setChosen({ ...chosen, kind: event.target.value })}>
        <option value="queue">queue</option><option value="topic">topic</option>
      </select>
    </label>
    <label class="field short"><span>Name</span>
      <input type="text" data-search autocomplete="off" spellcheck=${false} value=${chosen.name} onInput=${(event) => setChosen({ ...chosen, name: event.target.value })} />
    </label>
    <button type="submit" class="field">Show</button>
  </form>`;
}

function Listed({ route, kind, path }) {
  const found = usePaged(path, "subscriptions", EVERY);
  const open = route.query.s;
  const address = (id) => at(route.project, "subscriptions", { [kind]: route.query[kind], s: id });
  const one = found.value?.find((each) => each.id === open);
  return html`<${Stale} found=${found} />
    ${waiting(found) ?? html`<${Table} items=${found.value} open=${open} address=${address} />`}
    <${More} found=${found} />
    ${one && html`<${One} key=${open} item=${one} path=${`${path}/${open}`} changed=${found.again} away=${() => go(address(""))} />`}
    ${found.value && open && !one && html`<${Empty} title="It is not there any more"><p>The subscription has ended, or was deleted.</p></${Empty}>`}`;
}

function Table({ items, open, address }) {
  if (!items.length) {
    return html`<${Empty} title="Nobody has subscribed">
      <p>Messages go to a subscriber as they are posted: <code>zq subscription create jobs mailto:me@example.org</code></p>
    </${Empty}>`;
  }
  return html`<${Rows} name="Subscriptions" columns=${["Subscriber", "State", "#Age", "#Ends in"]}>
    ${items.map((one) => html`<${Row} key=${one.id} item=${one} open=${open} address=${address} />`)}
  </${Rows}>`;
}

function Row({ item: one, open, address }) {
  return html`<tr data-row class=${one.id === open ? "opened" : undefined}>
    <th scope="row"><a href=${address(one.id)}>${visible(one.subscriber)}</a></th>
    <td data-name="State">${state(one)}</td>
    <td class="number" data-name="Age">${age(one.age)}</td>
    <td class="number" data-name="Ends in">${age(Math.max(0, one.ttl - one.age))}</td>
  </tr>`;
}

function state(one) {
  return one.confirmed ? html`<span class="mark">is delivered to</span>` : html`<span class="mark delayed">has not confirmed</span>`;
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
  const agree = () => agreed(path, true, "It is delivered to from now on.", changed).catch((fault) => announce(fault.message, true));
  const test = () => call("POST", `${path}/deliveries`, {}).then(() => announce('{"test": true} is on its way.'), (fault) => announce(fault.message, true));
  return html`${!one.confirmed && html`<${Act} rule="subscription:confirm" kind="main" onClick=${agree}>Confirm</${Act}>`}
    <${Act} rule="subscription:update" when=${one.confirmed} why="The subscriber has not confirmed." onClick=${test}>Test delivery</${Act}>
    ${one.confirmed && html`<${Act} rule="subscription:confirm" onClick=${() => askToPause(one, path, changed)}>Pause…</${Act}>`}
    <${Act} rule="subscription:delete" kind="danger" onClick=${() => askToEnd(one, path, changed, away)}>Delete…</${Act}>`;
}

async function agreed(path, confirmed, text, changed) {
  await call("PUT", `${path}/confirm`, { body: JSON.stringify({ confirmed }) });
  announce(text);
  changed();
}

function askToPause(one, path, changed) {
  const body = html`<p>Nothing is delivered to ${visible(one.subscriber)} until it is confirmed again. It is told so, and asked.</p>
    <p>What is posted meanwhile is not kept for it; what was given up stays.</p>`;
  const act = () => agreed(path, false, "It is not delivered to any more.", changed);
  ask({ title: "Pause a subscription", verb: "Pause", body, act });
}

function askToEnd(one, path, changed, away) {
  const body = html`<p>The subscription of ${visible(one.subscriber)} ends, and with it what waits to be delivered and what was given up.</p>
    <p>The messages themselves stay.</p>`;
  const act = async () => {
    await call("DELETE", path);
    announce("The subscription was deleted.");
    away();
    changed();
  };
  ask({ title: "Delete a subscription", verb: "Delete", body, act });
}
