#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- Counts a topic's living messages. KEYS: the log. ARGV: now, topic, after.
-- Returns after which sequence to go on, "" at the end; how many live in the batches that live wholly; the fronts of the
-- first and the last of these, or ""; batches of which a part has expired.

local STEPS = 2000
local MOST_BYTES = 1048576  -- after so many of messages it stops

local log, now, topic = log_at(1), tonumber(ARGV[1]), ARGV[2]
local dropped = tonumber(redis.call('HGET', log.counts, 'dropped') or 0)
local purged = tonumber(redis.call('HGET', log.purged, topic) or 0)
local found = fronts(log, topic, math.max(tonumber(ARGV[3]), dropped, purged), STEPS)
local free, oldest, newest, following, pieces, bytes = 0, '', '', '', {}, 0
for i, front in ipairs(found) do
  local batch = opened(front)
  if batch.soonest > now then
    free, newest = free + batch.count, front
    if oldest == '' then oldest = front end
  elseif batch.latest > now then
    local messages = messages_of(log, batch.last)
    tell_batch(pieces, front, messages)
    bytes = bytes + #messages
  end
  if i == STEPS or bytes >= MOST_BYTES then
    following = batch.place
    break
  end
end
return { following, free, oldest, newest, table.concat(pieces) }
