-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts in which messages finish. Where the queue has a history, a record of each stays: layout.py draws it.

local PAST = '>BI8I8I8'
local DELETED, POPPED, MOVED, DEAD_LETTERED = 1, 2, 3, 4

-- The next six keys, those of a queue's history that keeps records for so many seconds; nil for 0.
local function history(seconds)
  if seconds == 0 then return nil end
  local at = keys(6)
  return {
    kept = seconds * 1000, history = KEYS[at], past = KEYS[at + 1], forget = KEYS[at + 2], finished = KEYS[at + 3],
    remains = KEYS[at + 4], latest = KEYS[at + 5],
  }
end

-- Records of messages that are about to go, as they are now but for their claims; `outcome` of each is set, or given.
local function keep(q, h, messages, now, outcome)
  local state = redis.call('HMGET', q.state, 'sequence', 'start', 'finished')
  local position, finished = counted(tonumber(state[1]), tonumber(state[2]), now), risen(tonumber(state[3] or 0), now)
  local members, order, past, forget, records, remains, latest = {}, {}, {}, {}, {}, {}, {}
  for i, m in ipairs(messages) do
    local n = 2 * i - 1
    local place = string.format('%014.0f', position + i)
    members[i], order[n], order[n + 1] = m.member, place, place
    past[n], past[n + 1] = m.member, place
    forget[n], forget[n + 1] = finished + h.kept, place
    records[n] = place
    records[n + 1] = struct.pack(PAST, m.outcome or outcome, finished, position + i, finished + h.kept)
      .. string.sub(m.record, 1, HEAD_SIZE - 2) .. '\0\0' .. m.tail
    latest[n], latest[n + 1] = id_of(m.record), place
  end
  for i, body in ipairs(pick(q.bodies, members)) do remains[2 * i - 1], remains[2 * i] = order[2 * i], body end
  redis.call('HSET', q.state, 'sequence', position + #messages, 'finished', finished)
  put('ZADD', h.history, order)
  put('ZADD', h.past, past)
  put('ZADD', h.forget, forget)
  put('HSET', h.finished, records)
  put('HSET', h.remains, remains)
  put('HSET', h.latest, latest)
end

-- Takes messages away for good. `h`: the queue's history, nil if it keeps none.
local function finish(q, h, messages, now, outcome)
  if h and #messages > 0 then keep(q, h, messages, now, outcome) end
  remove(q, messages)
end
