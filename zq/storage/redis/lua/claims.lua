-- SPDX-License-Identifier: Apache-2.0
-- Claims: create, renew, release, settle.

---- script claim: allow-oom

-- Claims ready messages from the front of the queue, except those that have been claimed too often. KEYS: project,
-- queue, fences. ARGV: now, claim, limit, maximum bytes of bodies, ttl, grace (-1: do not extend lives), whether to
-- return an active claim with this id (1), fence or "", epoch, full name of the queue, expected metadata ("" = any),
-- holder, maximum number of claims (-1: unlimited), redelivery delays in seconds after the first, second, ... claim.
-- Returns the outcome (1 byte): CLAIMED, AGAIN (the call has removed its maximum number of expired messages), EXISTING,
-- or OTHER and the metadata. Then the numbers of lapsed claims and of removed messages (4 bytes each), the ids of the
-- messages that were claimed too often (4 bytes: their total length), and the messages.

local CLAIMED, AGAIN, EXISTING, OTHER = '\0', '\1', '\2', '\3'

local q, now, claim, limit, most_bytes = queue_at(5), number(), argument(), number(), number()
local lease, grace, named = number(), number(), number() == 1
local refused = fenced(KEYS[keys(1)], argument(), number())
if refused then return refused end
q.full = argument()
local other = other_metadata(name_of(q.full), argument())
if other then return OTHER .. other end

local function reply(outcome, lapsed, expired, spent, messages)
  local ids = listed_ids(spent)
  return answer(q, messages, { outcome, struct.pack('>I4I4I4', lapsed, expired, #ids), ids })
end

if named then
  local messages = held(q, claim, now)
  if #messages > 0 then return reply(EXISTING, 0, 0, {}, messages) end
end
local holder, most, first_wait = argument(), number(), argument_at + 1
if most < 0 then most = math.huge end

-- In milliseconds (ClaimRequest.wait).
local function wait(count) return tonumber(ARGV[math.min(first_wait + count - 1, #ARGV)]) * 1000 end

-- The claim in the state of a ready message has ended.
local function hold(messages)
  local pieces, lapsed = {}, 0
  remove_from_claims(q, messages)
  for i, m in ipairs(messages) do
    if m.claim ~= '' then lapsed = lapsed + 1 end
    local first = first_claimed_of(m)
    m.former, m.count, m.first = m.available, m.count + 1, first > 0 and first or now
    put_under(m, claim, now, lease, grace, wait(m.count))
    pieces[i] = m.member
  end
  local list = (redis.call('HGET', q.claims, claim) or '') .. table.concat(pieces)
  redis.call('HSET', q.claims, claim, list, HOLDER .. claim, holder)
  rewrite(q, messages, now)
  return lapsed
end

local found, more, expired, lane = take(q, limit, now)
local fresh, spent, lapsed = {}, {}, 0
for _, m in ipairs(portion(found, most_bytes)) do
  if m.count < most then fresh[#fresh + 1] = m else spent[#spent + 1] = id_of(m) end
end
advance(q, lane, fresh)
if #fresh > 0 then lapsed = hold(fresh) end
local again = more and #fresh == 0 and #spent == 0
return reply(again and AGAIN or CLAIMED, lapsed, expired, spent, fresh)

---- script claim_get: no-writes

-- Returns an active claim. KEYS: project, queue. ARGV: now, claim. Returns the holder, preceded by its length (2
-- bytes), and the messages of the claim; "" if the claim does not exist.

local q, now, claim = queue_at(5), number(), argument()
local messages = held(q, claim, now)
return #messages > 0 and answer(q, messages, { listed_ids({ holder_of(q, claim) }) }) or ''

---- script claim_list: no-writes

-- Lists active claims with ids above `id`, ordered by id. KEYS: project, queue. ARGV: now, id, limit. Returns the last
-- id examined, or "" if there are no more; for each claim its id, its holder, and its start, its end and its number of
-- messages (8, 8, 4 bytes).

local q, now, after, limit = queue_at(5), number(), argument(), number()
local ids, reply, steps, found, last = {}, { '' }, 0, 0, ''
for _, field in ipairs(redis.call('HKEYS', q.claims)) do
  if cut(field, 1, 1) ~= HOLDER and field > after then ids[#ids + 1] = field end
end
table.sort(ids)
for _, id in ipairs(ids) do
  if found == limit or steps >= STEPS then
    reply[1] = last
    break
  end
  local members, count, began, ends = members_in(redis.call('HGET', q.claims, id)), 0, nil, nil
  for _, state in ipairs(pick(q.states, members)) do
    local _, expires, _, its_end, _, its_start = unpacked('>I8I8I8I8I8I8', state or string.rep('\0', STATE_SIZE))
    if its_end > now and expires > now then count, began, ends = count + 1, its_start, its_end end
  end
  if count > 0 then
    for _, piece in ipairs({ id, holder_of(q, id), struct.pack('>I8I8I4', began, ends, count) }) do
      reply[#reply + 1] = piece
    end
    found = found + 1
  end
  steps, last = steps + 1 + #members, id
end
return reply

---- script renew: allow-oom

-- Restarts a claim. KEYS: project, queue, fences if the request names a fence. ARGV: now, claim, ttl, grace, fence or
-- "", epoch. Returns "".

local q, now, claim, lease, grace, fence, epoch =
  queue_at(5), number(), argument(), number(), number(), argument(), number()
local refused = fenced(KEYS[keys(1)], fence, epoch)
if refused then return refused end
local messages = held(q, claim, now)
if #messages == 0 then return { 'unclaimed' } end
for _, m in ipairs(messages) do put_under(m, claim, now, lease, grace, m.available - m.ends) end
rewrite(q, messages, now)
return ''

---- part releasing

-- Part of scripts that release messages.

-- Releases messages after their `delay` in seconds. If it is -1, the redelivery delay applies; without one, the
-- messages return to their former positions.
local function give_back(q, full, messages, now)
  if #messages == 0 then return end
  remove_from_claims(q, messages)
  for _, m in ipairs(messages) do
    local wait = m.available - m.ends
    if m.delay >= 0 then
      m.available = now + m.delay * 1000
    else
      m.available = wait > 0 and now + wait or m.former
    end
    m.claim, m.ends = '', 0
  end
  rewrite(q, messages, now)
  notify(full)
end

---- script release: allow-oom

-- Releases all messages of a claim. KEYS: project, queue. ARGV: now, claim, full name of the queue, delay in seconds
-- (-1: the redelivery delay). Returns "".

local q, now, claim, full, delay = queue_at(5), number(), argument(), argument(), number()
q.full = full
local messages = held(q, claim, now)
for _, m in ipairs(messages) do m.delay = delay end
give_back(q, full, messages, now)
return ''

---- script settle: allow-oom

-- Settles messages of a claim, or all of them. KEYS: project, queue, fences, idempotency results, history if the queue
-- has one, target queues. ARGV: now, claim, full name of the queue, fence or "", epoch, idempotency key or "", digest,
-- expiry of the key, seconds of history, whether to delete the remaining messages (1), numbers of deletes, releases and
-- targets; ids to delete; ids to release with delays (-1: the redelivery delay); targets and moves, see `moving` in
-- moves.lua. Returns for each target the earliest expiry of its new messages, then the numbers of deleted, released,
-- moved and buried messages (4 bytes each), and the ids of lost messages.

local q, now, claim, full = queue_at(5), number(), argument(), argument()
q.full = full
local fences, fence, epoch = KEYS[keys(1)], argument(), number()
local answers, key, digest, expires = keys(2), argument(), argument(), number()
local h, rest, deletes, releases, count = history(number()), number() == 1, number(), number(), number()
local refused = key ~= '' and known(answers, key, now) or fenced(fences, fence, epoch)
if refused then return refused end
local messages, by_id, lost = held(q, claim, now), {}, {}
if #messages == 0 then return { 'unclaimed' } end

if #ARGV > argument_at then
  for _, m in ipairs(messages) do by_id[id_of(m)] = m end
end

-- Returns the claimed message with the id, which no later member of the request can name again.
local function named(id)
  local m = by_id[id]
  by_id[id] = nil
  if m then m.named = true else lost[#lost + 1] = id end
  return m
end

local deleted, released, moved, buried = {}, {}, {}, 0
for _ = 1, deletes do deleted[#deleted + 1] = named(argument()) end
for _ = 1, releases do
  local m, delay = named(argument()), number()
  if m then
    m.delay = delay
    released[#released + 1] = m
  end
end
local targets = read_targets(count)
local moves, ids = read_moves(targets)
for _, id in ipairs(ids) do
  local item = moves[id]
  item.m = named(id)
  if item.m then
    moved[#moved + 1] = item
    buried = buried + (item.reason == '' and 0 or 1)
  end
end
for _, m in ipairs(messages) do
  if rest and not m.named then deleted[#deleted + 1] = m end
end
refused = missing_target(moved)
if refused then return refused end
finish(q, h, deleted, now, DELETED)
give_back(q, full, released, now)
if #moved > 0 then move_all(q, h, full, moved, now) end
local settled = struct.pack('>I4I4I4I4', #deleted, #released, #moved - buried, buried) .. listed_ids(lost)
if key ~= '' then remember_for(name_of(full), answers, key, digest, expires, settled) end
return earliest(targets) .. settled

---- script handle: allow-oom

-- Deletes messages by the claims with which they were delivered, or changes the ends of their claims. KEYS: project,
-- queue, history if the queue has one. ARGV: now, full name of the queue, whether an ended claim is valid if it is the
-- latest (1), seconds of history; for each message its id, claim, claim count, the seconds until the claim ends (-1:
-- delete the message), and the maximum duration of the claim in seconds (0: unlimited). Returns the outcome for each
-- message, 1 byte.

local DONE, GONE, LOST, EXPIRED, TOO_LONG = '\0', '\1', '\2', '\3', '\4'

local q, now, full, late, h = queue_at(5), number(), argument(), number() == 1, history(number())
q.full = full
local ids, by_id = {}, {}
for at = argument_at + 1, #ARGV, 5 do
  local id = ARGV[at]
  if by_id[id] == nil then
    ids[#ids + 1], by_id[id] = id, false
  end
end
local found = locate(q, ids, now)
local taken = reserved(q, found)
for _, m in ipairs(found) do by_id[id_of(m)] = m end

-- Lets the claim of a message end in `delay` seconds. Returns whether the message becomes available earlier than
-- before.
local function hold_for(m, seconds)
  local former, wait = m.available, m.available - m.ends
  m.lay = m.lay or former
  m.ends, m.is_kept = now + seconds * 1000, true
  m.available = m.ends + wait
  m.state = pack_state(m)  -- history entries contain the state
  return m.available < former
end

local deleted, kept, answers, sooner = {}, {}, {}, false
while argument_at < #ARGV do
  local id, claim, count, seconds, max_hold = argument(), argument(), number(), number(), number()
  local m, answer = by_id[id], DONE
  if not m then
    answer = GONE
  elseif m.claim == '' or m.claim ~= claim or m.count ~= count or taken[m.member] then
    answer = LOST
  elseif m.ends <= now and not late then
    answer = EXPIRED
  elseif max_hold > 0 and math.floor((now - m.claimed) / 1000) + seconds > max_hold then
    answer = TOO_LONG
  elseif seconds < 0 then
    deleted[#deleted + 1], by_id[id] = m, false
  else
    sooner = hold_for(m, seconds) or sooner
  end
  answers[#answers + 1] = answer
end
for _, id in ipairs(ids) do
  local m = by_id[id]
  if m and m.is_kept then kept[#kept + 1] = m end
end
finish(q, h, deleted, now, DELETED)
if #kept > 0 then rewrite(q, kept, now) end
if sooner then notify(full) end
return table.concat(answers)
