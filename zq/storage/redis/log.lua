-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts on a project's log. batches.py draws what they keep.

local LOG_KEYS = 5
local LOG_DIGITS = 16
local FRONT = '>I4I8I8I8I8I8'

-- The keys of the log whose first key is KEYS[at].
local function log_at(at)
  return {
    stream = KEYS[at], counts = KEYS[at + 1], topics = KEYS[at + 2], fading = KEYS[at + 3], purged = KEYS[at + 4],
  }
end

local function digits(sequence) return string.format('%0' .. LOG_DIGITS .. '.0f', sequence) end

local function entry_id(sequence) return string.format('%.0f-0', sequence) end

-- What the fronts of a topic's batches begin with, and those of no other topic.
local function heading(topic) return struct.pack('>I2', #topic) .. topic end

-- The batch that a front speaks of.
local function opened(front)
  local length = struct.unpack('>I2', front)
  local batch = { topic = string.sub(front, 3, 2 + length), place = string.sub(front, 3 + length, 2 + length + LOG_DIGITS) }
  batch.last = tonumber(batch.place)
  batch.count, batch.created, batch.soonest, batch.latest, batch.messages, batch.bytes =
    struct.unpack(FRONT, front, 3 + length + LOG_DIGITS)
  return batch
end

-- Fronts of a topic's batches of sequence above `after`, in sequence.
local function fronts(log, topic, after, count)
  local head = heading(topic)
  return redis.call('ZRANGE', log.topics, '[' .. head .. digits(after + 1), '(' .. head .. ':', 'BYLEX', 'LIMIT', 0, count)
end

-- The messages of the batch with this last sequence; nil if it is gone.
local function messages_of(log, last)
  local entry = redis.call('XRANGE', log.stream, entry_id(last), entry_id(last))[1]
  return entry and entry[2][2]
end

-- Tells whoever follows the project. A user who must not is no reason to fail in the middle of a change.
local function feed(channel, content) redis.pcall('SPUBLISH', channel, content) end

-- Adds a batch to what a reply is made of.
local function tell_batch(pieces, front, messages)
  local n = #pieces
  pieces[n + 1], pieces[n + 2], pieces[n + 3] = struct.pack('>I4', #messages), front, messages
end

-- Takes batches, by their fronts, away for good.
local function discard(log, gone)
  if #gone == 0 then return end
  local ids = {}
  for i, front in ipairs(gone) do ids[i] = entry_id(opened(front).last) end
  redis.call('XDEL', log.stream, unpack(ids))
  redis.call('ZREM', log.topics, unpack(gone))
  redis.call('ZREM', log.fading, unpack(gone))
end
