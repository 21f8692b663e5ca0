-- SPDX-License-Identifier: Apache-2.0
-- Claims: taking, renewing, giving back, settling.

---- script claim: allow-oom

-- Claims ready messages from the front; those that were claimed too often are left as they are. KEYS: project, queue,
-- fences. ARGV: now, claim, limit, bytes of bodies, ttl, grace (-1: lives are not prolonged), whether a living claim of
-- this id is the answer (1), fence or "", epoch, queue's full name, expected metadata ("" = any), holder, most claims
-- (-1: any number), redelivery delays in seconds after the first, second, ... claim.
-- Returns what became of it (1 byte): CLAIMED, AGAIN (so much had expired that this call has done enough), EXISTING, or
-- OTHER and the metadata. Then how many messages claims had let lapse and how many expired ones went (4 bytes each);
-- the ids of those claimed too often (4 bytes: length of the whole); messages.

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

-- Milliseconds (ClaimRequest.wait).
local function wait(count) return tonumber(ARGV[math.min(first_wait + count - 1, #ARGV)]) * 1000 end

-- A claim that a ready message names has ended.
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

-- KEYS: project, queue. ARGV: now, claim. Returns the holder with its length in front (2 bytes), and all that the live
-- claim holds; "" if there is no such claim.

local q, now, claim = queue_at(5), number(), argument()
local messages = held(q, claim, now)
return #messages > 0 and answer(q, messages, { listed_ids({ holder_of(q, claim) }) }) or ''

---- script claim_list: no-writes

-- Live claims with ids above one, by id. KEYS: project, queue. ARGV: now, id, limit.
-- Returns the last id that was looked at, "" if there are no more; of each claim id, holder, and when it began and ends
-- and how many messages it holds (8, 8, 4 bytes).

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

-- Starts a claim anew. KEYS: project, queue, fences if one is named. ARGV: now, claim, ttl, grace, fence or "", epoch.
-- Returns "".

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

-- Part of scripts that give messages back.

-- Gives messages back: after their `delay` in seconds; where that is -1, after their redelivery delay, or to their
-- former places where they have none.
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

-- Gives back what a claim holds. KEYS: project, queue.
-- ARGV: now, claim, queue's full name, delay in seconds (-1: each as it was claimed). Returns "".

local q, now, claim, full, delay = queue_at(5), number(), argument(), argument(), number()
q.full = full
local messages = held(q, claim, now)
for _, m in ipairs(messages) do m.delay = delay end
give_back(q, full, messages, now)
return ''

---- script settle: allow-oom

-- Ends a claim's work on some of its messages, or on all.
-- KEYS: project, queue, fences, answers, history if there is one, targets.
-- ARGV: now, claim, queue's full name, fence or "", epoch, key or "", digest, until when it is kept, seconds of
-- history, whether to delete the rest (1), numbers of deletes, releases and targets; ids to delete; ids to release with
-- delays (-1: as claimed); targets and moves as `moving` in moves.lua reads them.
-- Returns for each target when what came to it expires first, then how many
-- were deleted, released, moved and buried (4 bytes each), and the ids that were lost.

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

-- The held message of the id, which is then spoken for.
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
finish(q, h, deleted, now, DELETED)
give_back(q, full, released, now)
if #moved > 0 then move_all(q, h, full, moved, now) end
local settled = struct.pack('>I4I4I4I4', #deleted, #released, #moved - buried, buried) .. listed_ids(lost)
if key ~= '' then remember_for(name_of(full), answers, key, digest, expires, settled) end
return earliest(targets) .. settled

---- script handle: allow-oom

-- Deletes messages by the claims that handed them out, or has the hold on them end otherwise.
-- KEYS: project, queue, history if there is one.
-- ARGV: now, queue's full name, whether a last holder counts whose time is up (1), seconds of history; for each message
-- its id, claim, claim count, in how many seconds the hold ends (-1: it is to be deleted), and how many seconds the
-- claim may hold it in all (0: any).
-- Returns what became of each, 1 byte.

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

-- Has the hold on a message end in so many seconds; whether it is available sooner then.
local function hold_for(m, seconds)
  local former, wait = m.available, m.available - m.ends
  m.lay = m.lay or former
  m.ends, m.is_kept = now + seconds * 1000, true
  m.available = m.ends + wait
  m.state = pack_state(m)  -- which its record has, if it is deleted then
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
