// SPDX-License-Identifier: Apache-2.0
// All projects of the deployment: what each may do, how much it has, and its end.

import { call, get } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { lacking, More, Rows, usePaged } from "../parts/paged.js";
import { Empty, Stale } from "../parts/states.js";
import { at, to } from "../route.js";
import { session } from "../session.js";
import { count, visible } from "../text.js";
import { Use } from "./quota.js";

const EVERY = 5;
const STATES = { active: "all requests are allowed", read_only: "only reads are allowed", suspended: "no requests are allowed" };

/** The part. */
export function Projects({ route }) {
  const found = usePaged("admin/projects", "projects", EVERY);
  const one = found.value?.find((each) => each.project === route.query.of);
  return lacking(found) ?? html`<${Stale} found=${found} /><${Listed} route=${route} found=${found} />${one && html`<${One} route=${route} item=${one} changed=${found.again} />`}`;
}

function Listed({ route, found }) {
  if (!found.value.length) return html`<${Empty} title="No projects"><p>A project appears after its first queue, topic or token is created.</p></${Empty}>`;
  const row = (one) => html`<tr key=${one.project} data-row class=${one.project === route.query.of ? "opened" : undefined}>
    <th scope="row"><a href=${at(route.project, "admin", { part: "projects", of: one.project })}>${visible(one.project)}</a></th>
    <td data-name="State">${visible(one.state)}</td>
    <td class="number" data-name="Queues">${count(one.used.queues)}</td>
    <td class="number" data-name="Messages">${count(one.used.stored_messages)}</td>
    <td class="number" data-name="Bytes">${count(one.used.stored_bytes)}</td>
  </tr>`;
  return html`<${Rows} name="Projects" columns=${["Project", "State", "#Queues", "#Messages", "#Bytes"]}>${found.value.map(row)}</${Rows}><${More} found=${found} />`;
}

function One({ route, item: one, changed }) {
  return html`<section class="message" aria-label="One project">
    <div class="title"><h2>${visible(one.project)}</h2><a data-close class="button" href=${at(route.project, "admin", { part: "projects" })}>Close</a></div>
    ${session.me?.auth === "none" && html`<p><a href=${to(one.project)}>Queues</a></p>`}
    <div class="row tools">
      <${Act} rule="admin:project_update" onClick=${() => askForState(one, changed)}>State…</${Act}>
      <${Act} rule="admin:project_update" onClick=${() => askForLimits(one, changed)}>Limits…</${Act}>
      <${Act} rule="admin:project_delete" kind="danger" onClick=${() => askToEnd(one, changed)}>Delete…</${Act}>
    </div>
    <${Use} value=${one} name="Usage of the project" />
  </section>`;
}

async function change(method, project, changed, said, body) {
  await call(method, "admin/project", { query: { project }, body: body && JSON.stringify(body) });
  announce(said);
  changed();
}

function askForState(one, changed) {
  const choice = ([state, says]) => html`<label class="check" key=${state}>
    <input type="radio" name="state" value=${state} defaultChecked=${state === one.state} /><span>${state}: ${says}</span>
  </label>`;
  const body = html`<fieldset><legend>State of ${visible(one.project)}</legend>${Object.entries(STATES).map(choice)}</fieldset><p>Queues and messages are kept.</p>`;
  const act = () => change("PUT", one.project, changed, "The state was saved.", { state: document.querySelector("dialog input[name=state]:checked").value });
  ask({ title: "State of a project", verb: "Save", harmless: true, body, act });
}

function askForLimits(one, changed) {
  const field = (name) => html`<label class="field" key=${name}>
    <span>${name}</span><input type="text" inputmode="numeric" autocomplete="off" data-limit=${name} defaultValue=${one.limits[name] ?? ""} />
  </label>`;
  const act = () => {
    const given = [...document.querySelectorAll("dialog [data-limit]")].filter((input) => input.value.trim());
    const limits = Object.fromEntries(given.map((input) => [input.dataset.limit, Number(input.value)]));
    return change("PUT", one.project, changed, "The limits were saved.", { limits });
  };
  const open = ({ limits }) => {
    const body = html`<div class="fields">${Object.keys(limits).map(field)}</div><p>Empty: the deployment's default; 0: no limit. Existing objects are kept.</p>`;
    ask({ title: `Limits of ${visible(one.project)}`, verb: "Save", harmless: true, body, act });
  };
  get("quota").then(open, (fault) => announce(fault.message, true));
}

function askToEnd(one, changed) {
  const body = html`<p>All queues, topics, messages (about ${count(one.used.stored_messages)}), tokens and subscriptions of ${visible(one.project)} are deleted. You cannot undo this.</p>
    <p>The deletion runs on the server. You can close this page.</p>`;
  const act = () => change("DELETE", one.project, changed, "The deletion has started.");
  ask({ title: "Delete a project", verb: "Delete", typed: one.project, body, act });
}
