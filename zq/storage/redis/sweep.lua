#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes expired messages of a queue, then records of its history, then answers to requests. KEYS: project, queue,
-- answers, history. ARGV: now, limit of all together.
-- Returns how many messages went, how much else, and the earliest expiry of what is left, 0 if nothing is.

local q, answers, windows, h, left = queue_at(4), KEYS[13], KEYS[14], nil, tonumber(ARGV[2])
keys(2)
h = history(1)

local function due(key)
  local found = redis.call('ZRANGE', key, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, left)
  left = left - #found
  return found
end

local function first(key) return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge) end

-- Records of the history at these places. An id whose latest record is another one keeps that.
local function forget(places)
  local ids, gone = {}, {}
  for i, record in ipairs(pick(h.finished, places)) do
    ids[i] = id_of(record, struct.size(PAST))
  end
  for i, place in ipairs(pick(h.latest, ids)) do
    if place == places[i] then gone[#gone + 1] = ids[i] end
  end
  put('ZREM', h.history, places)
  put('ZREM', h.past, places)
  put('ZREM', h.forget, places)
  put('HDEL', h.finished, places)
  put('HDEL', h.remains, places)
  put('HDEL', h.latest, gone)
end

local expired = load(q, due(q.expiry))
local past = due(h.forget)
local told = due(windows)
remove(q, expired)
forget(past)
put('HDEL', answers, told)
put('ZREM', windows, told)
local earliest = math.min(first(q.expiry), first(h.forget), first(windows))
return { #expired, #past + #told, earliest < math.huge and earliest or 0 }
