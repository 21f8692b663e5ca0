// SPDX-License-Identifier: Apache-2.0
// What batch jobs have under way: the last batch of each producer, fences, and stages, which can be dropped.

import { call } from "../api.js";
import { parse, write } from "../json.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { lacking, More, Rows, usePaged } from "../parts/paged.js";
import { Empty, Stale } from "../parts/states.js";
import { age, bytes, count, moment, visible } from "../text.js";

const EVERY = 5;
const PAGE = 100;
// Messages from which on a stage is dropped by typing its name.
const MANY = 20;

/** The page. */
export function Jobs() {
  return html`<div class="title"><h1>Jobs</h1></div>
    <p class="quiet">The state of batch jobs. A commit publishes the staged messages of a job and deletes its claimed messages, atomically.</p>
    <h2>Producers</h2>
    <${List} member="commits" name="Producers" columns=${["Producer", "#Last batch", "#Published", "#Deleted", "State", "#Committed"]} Row=${Producer}
      title="No commits" hint="A producer appears after its first POST /v2/commits and is kept for producer_ttl after its last commit." />
    <h2>Fences</h2>
    <${List} member="fences" name="Fences" columns=${["Fence", "#Epoch", "#Issued"]} Row=${Fence}
      title="No fences" hint="POST /v2/fences/{name} returns the next epoch. Requests with an older epoch are rejected." />
    <h2>Stages</h2>
    <${List} member="stages" name="Stages" columns=${["Stage", "#Messages", "#Bytes", "#Expires in", "Actions"]} Row=${Stage}
      title="No stages" hint="A post with ?stage={name} stages messages. They are hidden from consumers until a commit publishes them." />`;
}

function List({ member, name, columns, Row, title, hint }) {
  const found = usePaged(member, member, EVERY, { limit: PAGE }, { ends: true, load });
  const absent = lacking(found);
  if (absent) return absent;
  const rows = found.value.map((one) => html`<${Row} key=${one.name ?? one.producer} item=${one} done=${found.again} />`);
  return html`<${Stale} found=${found} />
    ${rows.length > 0 && html`<${Rows} name=${name} columns=${columns}>${rows}</${Rows}>`}
    ${rows.length === 0 && !found.more && html`<${Empty} title=${title}><p>${hint}</p></${Empty}>`}
    <${More} found=${found} />`;
}

/** Numbers of batches are the jobs' own, and may have 19 digits: they stay as they are written. */
async function load(path, query) {
  const { text } = await call("GET", path, { query });
  const exact = parse(text);
  const answer = JSON.parse(text);
  for (const [at, one] of (exact.commits ?? []).entries()) answer.commits[at].batch = write(one.batch);
  return answer;
}

function Producer({ item: one }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.producer)}</th>
    <td class="number" data-name="Last batch">${one.batch}</td>
    <td class="number" data-name="Published">${count(one.published)}</td>
    <td class="number" data-name="Deleted">${count(one.deleted)}</td>
    <td data-name="State">${one.open ? "in progress" : "done"}</td>
    <${Since} name="Committed" at=${one.decided} seconds=${one.age} />
  </tr>`;
}

function Fence({ item: one }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.name)}</th>
    <td class="number" data-name="Epoch">${count(one.epoch)}</td>
    <${Since} name="Issued" at=${one.advanced} seconds=${one.age} />
  </tr>`;
}

/** How long ago; a dash where an earlier version of zq did not note it. */
function Since({ name, at, seconds }) {
  return html`<td class="number" data-name=${name} title=${at === null ? "Not recorded by an earlier version of zq." : moment(at)}>${at === null ? "–" : `${age(seconds)} ago`}</td>`;
}

function Stage({ item: one, done }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.name)}</th>
    <td class="number" data-name="Messages">${count(one.messages)}</td>
    <td class="number" data-name="Bytes">${bytes(one.bytes)}</td>
    <td class="number" data-name="Expires in" title=${moment(one.expires)}>${age(one.dropped_in)}</td>
    <td><${Act} rule="messages:delete_all" kind="danger" aria-label=${`Delete ${visible(one.name)}…`} onClick=${() => askToDrop(one, done)}>Delete…</${Act}></td>
  </tr>`;
}

function askToDrop(one, done) {
  const body = html`<p>The stage and its messages (${count(one.messages)}) are deleted. You cannot undo this.</p>
    <p>Commits of this stage fail until the job stages messages again. Published messages are kept.</p>`;
  const act = async () => {
    await call("DELETE", `stages/${encodeURIComponent(one.name)}`);
    announce("The stage was deleted.");
    done();
  };
  const typed = one.messages > MANY ? one.name : undefined;
  ask({ title: `Delete the stage ${visible(one.name)}`, verb: "Delete", typed, body, act });
}
