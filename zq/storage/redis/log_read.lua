#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- Batches of a project's log with messages of sequence above `after`. KEYS: the log.
-- ARGV: after, number of messages, bytes, batches to look at, their topic or "" for all.
-- Returns up to where it has looked, the last sequence of the log and the last dropped (8 bytes each); the batches.

local MOST_TOGETHER = 64

local log, after, limit, most = log_at(1), tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local steps, topic = tonumber(ARGV[4]), ARGV[5]
local state = redis.call('HMGET', log.counts, 'sequence', 'dropped')
local last, dropped = tonumber(state[1] or 0), tonumber(state[2] or 0)

-- Up to there a topic was purged. Asked once for each topic.
local floors = redis.call('EXISTS', log.purged) == 1 and {}
local function purged(name)
  if not floors then return 0 end
  floors[name] = floors[name] or tonumber(redis.call('HGET', log.purged, name) or 0)
  return floors[name]
end

-- The next batches: fronts and messages.
local function look(position, count)
  local found = {}
  if topic == '' then
    local entries = redis.call('XRANGE', log.stream, entry_id(position + 1), '+', 'COUNT', count)
    for i, entry in ipairs(entries) do found[i] = entry[2] end
  else
    for i, front in ipairs(fronts(log, topic, position, count)) do found[i] = { front } end
  end
  return found
end

local position = math.max(after, dropped, topic == '' and 0 or purged(topic))
local pieces, looked, told, bytes, size, full = {}, 0, 0, 0, 1, false
while not full do
  local found = look(position, size)
  for _, entry in ipairs(found) do
    local batch = opened(entry[1])
    if purged(batch.topic) < batch.last then
      local messages = entry[2] or messages_of(log, batch.last)
      full = bytes > 0 and bytes + #messages > most
      if full then break end
      tell_batch(pieces, entry[1], messages)
      bytes = bytes + #messages
      told = told + batch.last - math.max(after, batch.last - batch.count)
    end
    position, looked = batch.last, looked + 1
    full = told >= limit or looked >= steps
    if full then break end
  end
  if not full and #found < size then
    position, full = math.max(position, last), true
  end
  size = math.min(2 * size, MOST_TOGETHER)
end
return struct.pack('>I8I8I8', position, last, dropped) .. table.concat(pieces)
