// SPDX-License-Identifier: Apache-2.0
// What waits to be delivered to one subscriber, and what was given up: tried again, or dropped.

import { call } from "../api.js";
import { parse, write } from "../json.js";
import { useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Rows } from "../parts/paged.js";
import { Stale, waiting } from "../parts/states.js";
import { age, count, visible } from "../text.js";

const EVERY = 5;
const SHOWN = 20;
const START = 200;

/** Both lists. `path`: of the subscription. */
export function Deliveries({ path }) {
  const dead = useLive(() => read(path, "dead"), EVERY, [path]);
  const pending = useLive(() => read(path, "waiting"), EVERY, [path]);
  const some = dead.value?.length > 0;
  const why = "There are no failed deliveries.";
  const again = () => {
    dead.again();
    pending.again();
  };
  return html`<h3>Failed</h3>
    <div class="row tools">
      <${Act} rule="subscription:update" when=${some} why=${why} onClick=${() => askToRedeliver(path, again)}>Redeliver…</${Act}>
      <${Act} rule="subscription:update" kind="danger" when=${some} why=${why} onClick=${() => askToDrop(path, again)}>Delete all…</${Act}>
    </div>
    <${List} found=${dead} name="Failed" empty="No failed deliveries." />
    <h3>Pending</h3>
    <${List} found=${pending} name="Pending" empty="No pending deliveries." />`;
}

/** The bodies are texts, digit by digit. */
async function read(path, state) {
  const { text } = await call("GET", `${path}/deliveries`, { query: { limit: SHOWN, state } });
  const bodies = parse(text).deliveries.map(({ body }) => (body === undefined ? "cannot be decrypted" : write(body)));
  return JSON.parse(text).deliveries.map((one, at) => ({ ...one, body: bodies[at] }));
}

function List({ found, name, empty }) {
  const shown = waiting(found);
  if (shown) return shown;
  if (!found.value.length) return html`<${Stale} found=${found} /><p class="quiet">${empty}</p>`;
  return html`<${Stale} found=${found} />
    <${Rows} name=${name} columns=${["Message", "#Attempts", "Last failure", "#Age", "Body"]}>
      ${found.value.map((one) => html`<${Row} key=${one.id} item=${one} />`)}
    </${Rows}>
    ${found.value.length >= SHOWN && html`<p class="quiet">Only the first ${SHOWN} are shown.</p>`}`;
}

function Row({ item: one }) {
  return html`<tr>
    <th scope="row" class="id">${visible(one.message_id)}</th>
    <td class="number" data-name="Attempts">${count(one.attempts)}</td>
    <td data-name="Last failure">${visible(one.reason || "–")}</td>
    <td class="number" data-name="Age">${age(one.age)}</td>
    <td class="start" data-name="Body">${visible(one.Message_Type === "Notification" ? one.body.slice(0, START) : one.Message_Type)}</td>
  </tr>`;
}

function askToRedeliver(path, done) {
  const body = html`<p>The server retries up to 1,000 failed deliveries, oldest first. Each gets the full number of attempts again.</p>`;
  const act = async () => {
    const { moved, remaining } = JSON.parse((await call("POST", `${path}/deliveries/redrive`, { body: "{}" })).text);
    announce(`Retrying ${moved === 1 ? "1 delivery" : `${count(moved)} deliveries`}. Still failed: ${count(remaining)}.`);
    done();
  };
  ask({ title: "Retry failed deliveries", verb: "Redeliver", harmless: true, body, act });
}

function askToDrop(path, done) {
  const body = html`<p>All failed deliveries of this subscriber are deleted. Pending deliveries and the messages in the queue or topic are kept.</p>`;
  const act = async () => {
    await call("DELETE", `${path}/deliveries`);
    announce("The failed deliveries were deleted.");
    done();
  };
  ask({ title: "Delete all failed deliveries", verb: "Delete all", typed: "delete", body, act });
}
