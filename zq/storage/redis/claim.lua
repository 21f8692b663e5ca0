#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Claims ready messages from the front; those claimed too often move to the other queue.
-- KEYS: project, queue, fences if the claim is named; with a rule for dead letters history, if any, and other queue.
-- ARGV: now, claim, limit, bytes of bodies, ttl, grace, redelivery: delay, cap, whether it doubles (1); whether the claim
-- is named (1), then fence or "" and epoch; with a rule also queue's full name, seconds of history, most claims, ttl in
-- the other queue (-1: own), its full name.
-- Returns whether to look again (1 byte; 2: no, the named claim lived already), how many messages claims had let lapse
-- and how many expired ones went (4 bytes each), the earliest expiry of what moved (8 bytes, 0: nothing did), records
-- with bodies.

local q, now, claim, limit, most_bytes = queue_at(4), number(), argument(), number(), number()
local lease, grace = number(), number()
local delay, cap, doubles, named = number(), number(), number() == 1, number() == 1
if named then
  local refused = fenced(KEYS[keys(1)], argument(), number())
  if refused then return refused end
  local messages = held(q, claim, now)
  if #messages > 0 then
    return answer_with(with_bodies(q, messages, math.huge), { '\2', struct.pack('>I4I4I8', 0, 0, 0) })
  end
end
local full, h, most, life, target = argument(), nil, math.huge, nil, {}
if full then
  h, most, life = history(number()), number(), number()
  target = read_targets(1)[1]
end

local function bury(messages)
  local ways = {}
  for i, m in ipairs(messages) do
    ways[i] = { m = m, to = target, ttl = life, delay = 0, reason = 'max_claim_count' }
  end
  move(q, h, full, ways, now)
end

-- Milliseconds (Redelivery.wait).
local function wait(count)
  return math.min(doubles and delay * 2 ^ math.min(count - 1, 31) or delay, cap) * 1000
end

-- A claim that stands in a ready message's record has ended.
local function hold(messages)
  local pieces, lapsed = {}, 0
  strike(q, messages)
  for i, m in ipairs(messages) do
    if m.claim ~= '' then lapsed = lapsed + 1 end
    m.former, m.count = m.available, m.count + 1
    put_under(m, claim, now, lease, grace, wait(m.count))
    pieces[i] = m.member
  end
  redis.call('HSET', q.claims, claim, (redis.call('HGET', q.claims, claim) or '') .. table.concat(pieces))
  for i, record in ipairs(rewrite(q, messages)) do messages[i].record = record end
  return lapsed
end

local buried, fresh, more, expired, lapsed = 0, {}, true, 0, 0
while #fresh == 0 and more and buried < STEPS do
  local found, dead, gone = nil, {}, 0
  found, more, gone = take(q, limit, now)
  expired = expired + gone
  for _, m in ipairs(with_bodies(q, found, most_bytes)) do
    if m.count < most then fresh[#fresh + 1] = m else dead[#dead + 1] = m end
  end
  if #dead > 0 then
    bury(dead)
    buried = buried + #dead
    more = true
  elseif more then
    break
  end
end
if #fresh > 0 then lapsed = hold(fresh) end
local again = #fresh == 0 and more
local front = { again and '\1' or '\0', struct.pack('>I4I4', lapsed, expired), earliest({ target }) }
return answer_with(fresh, front)
