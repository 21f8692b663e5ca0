#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Claims ready messages from the front; those claimed too often move to the other queue.
-- KEYS: project, queue, other queue if there is a rule for dead letters.
-- ARGV: now, claim, limit, ttl, grace; with a rule also queue name, most claims, other queue's name, ttl there (-1: own).
-- Returns whether to look again (1 byte), the earliest expiry of what moved (8 bytes, 0: nothing did), records with
-- bodies.

local q, now, claim, limit = queue_at(4), tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local lease, grace = tonumber(ARGV[4]), tonumber(ARGV[5])
local origin, most, target, life = ARGV[6], tonumber(ARGV[7] or math.huge), ARGV[8], tonumber(ARGV[9] or -1)
local earliest = 0

local function letter(m)
  local ttl = life >= 0 and life or m.ttl
  local expires = now + ttl * 1000
  local created, _, id, client, checksum = struct.unpack(TAIL, m.tail)
  local reason = 'max_claim_count'
  earliest = earliest == 0 and expires or math.min(earliest, expires)
  return struct.pack(HEAD, 0, 0, expires, ttl, 0, 0, 0, 0, 0, 0)
    .. struct.pack(TAIL, created, m.count, id, client, checksum, #origin, #reason)
    .. string.sub(m.tail, TAIL_SIZE + 1, TAIL_SIZE + id + client + checksum) .. origin .. reason
end

local function bury(messages)
  local members = {}
  for i, m in ipairs(messages) do members[i] = m.member end
  local bodies = pick(q.bodies, members)
  remove(q, messages)
  local batch = batch_for(queue_at(13), target, now)
  for i, m in ipairs(messages) do add(batch, letter(m), bodies[i]) end
  store(batch)
end

local function hold(messages)
  local pieces = {}
  strike(q, messages)
  for i, m in ipairs(messages) do
    m.former, m.count = m.available, m.count + 1
    put_under(m, claim, now, lease, grace)
    pieces[i] = m.member
  end
  redis.call('HSET', q.claims, claim, (redis.call('HGET', q.claims, claim) or '') .. table.concat(pieces))
  for i, record in ipairs(rewrite(q, messages)) do messages[i].record = record end
end

local buried, fresh, more = 0, {}, true
while #fresh == 0 and more and buried < STEPS do
  local found, dead = nil, {}
  found, more = take(q, limit, now)
  for _, m in ipairs(found) do
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
if #fresh > 0 then hold(fresh) end
local again = #fresh == 0 and more
return answer_with(q, fresh, { again and '\1' or '\0', struct.pack('>I8', earliest) })
