-- SPDX-License-Identifier: Apache-2.0
-- What several files' scripts have in common.

---- part shared

-- What the scripts on queues have in common; it is put in front of each, behind FALSE_FUTURE: ms ahead of now from
-- which on a queue's last moment is not believed, and OVERHEAD: bytes that a message counts besides its body.
-- layout.py draws the keys.

local PER_MS = 16           -- a queue's sequences rise with the clock at least so fast: see decision 0011
local MAX_BY_CLOCK = 9e13

-- The last sequence given, or, what is more, the one that the clock is at.
local function counted(sequence, start, now) return math.max(sequence, math.min(now * PER_MS - start, MAX_BY_CLOCK)) end

-- An entry of a queue's stream is a message as it came, and a state what became of it since: see layout.py.
local ENTRY = '>BI6I8I8I8I4I2I2I2'
local ENTRY_SIZE = 41
local DRAFT_FRONT = 7       -- bytes of it that a draft has not
local LARGE = 1024          -- bytes of a body from which on it lies beside the stream
local MEMBER = '>I6'        -- a sequence as member of a set, field of a hash, and on the list of a claim
local MEMBER_SIZE = 6
local HOLDER = '\0'         -- in front of a claim's id: the field with its holder, which an earlier version left alone
local MIXED = '\0\0'        -- likewise: the field that is there if it may hold its messages until different moments

local SLICE = 2000          -- arguments of one command: Lua's stack is limited
local STEPS = 1000          -- entries that one call steps over at most
local READY = 'zq:ready'    -- channel for the names of queues that messages came to

local argument_at, key_at = 0, 13

-- The next of ARGV: as it is, as a number.
local function argument()
  argument_at = argument_at + 1
  return ARGV[argument_at]
end

local function number() return tonumber(argument()) end

-- Where the next `count` keys begin, of those behind project and queue.
local function keys(count)
  local first = key_at + 1
  key_at = key_at + count
  return first
end

-- The keys of the queue whose first key is KEYS[at].
local function queue_at(at)
  return {
    state = KEYS[at], avail = KEYS[at + 1], stream = KEYS[at + 2], expiry = KEYS[at + 3], claimed = KEYS[at + 4],
    states = KEYS[at + 5], bodies = KEYS[at + 6], ids = KEYS[at + 7], claims = KEYS[at + 8],
  }
end

-- A full name, as layout.full writes it, holds the project's name and the queue's.
local function name_of(full) return string.sub(full, 5 + struct.unpack('>I4', full)) end

-- The metadata of the queue of this name, if they are not the expected ones ("" = any); else nil.
local function other_metadata(name, expected)
  if expected == '' then return nil end
  local metadata = redis.call('HGET', KEYS[2], name) or '{}'
  return metadata ~= expected and metadata or nil
end

-- Notifies whoever listens. A user who must not is no reason to fail in the middle of a change.
local function notify(full) redis.pcall('PUBLISH', READY, full) end

-- A writing command with any number of arguments; the sum of what it answers.
local function put(command, key, arguments)
  local sum = 0
  for first = 1, #arguments, SLICE do
    sum = sum + redis.call(command, key, unpack(arguments, first, math.min(first + SLICE - 1, #arguments)))
  end
  return sum
end

-- HMGET of any number of fields.
local function pick(key, fields)
  if #fields == 0 then return {} end
  if #fields <= SLICE then return redis.call('HMGET', key, unpack(fields)) end
  local values = {}
  for first = 1, #fields, SLICE do
    local slice = redis.call('HMGET', key, unpack(fields, first, math.min(first + SLICE - 1, #fields)))
    for _, value in ipairs(slice) do values[#values + 1] = value end
  end
  return values
end

-- Texts, each with its length in front: how a reply names ids, which are packed.
local function listed_ids(ids)
  local pieces = {}
  for i, id in ipairs(ids) do pieces[i] = struct.pack('>I2', #id) .. id end
  return table.concat(pieces)
end

-- The larger of now and a last moment that is to be believed.
local function risen(last, now) return last > now + FALSE_FUTURE and now or math.max(now, last) end

-- What a project has stored is a sum of figures: `stored` messages and their `bytes` of each queue, the bytes `kept` in
-- its history, what is staged, what is remembered. Each changes in the step that changes what it counts, and so does
-- the sum. Messages and records of history that no version has counted have no sequence above a queue's `from`.

local ANSWERED = 'answers:'  -- before a queue's name: the figure of what is remembered there

-- Adds to a field of the sum, of which nothing is left when it is 0.
local function add_to(field, change)
  if change ~= 0 and redis.call('HINCRBY', KEYS[4], field, change) <= 0 then redis.call('HDEL', KEYS[4], field) end
end

-- Adds to the sum.
local function add_usage(messages, bytes)
  add_to('messages', messages)
  add_to('bytes', bytes)
end

-- Adds to a figure that lies beside the sum and does not fall below 0; by how much it changed.
local function add_to_part(field, change)
  local former = tonumber(redis.call('HGET', KEYS[4], field) or 0)
  local figure = math.max(0, former + change)
  if figure > 0 then
    redis.call('HSET', KEYS[4], field, figure)
  elseif former > 0 then
    redis.call('HDEL', KEYS[4], field)
  end
  return figure - former
end

-- Removes figures of a queue; the change of the sum.
local function drop_figures(q, ...)
  local change = 0
  for _, figure in ipairs(redis.call('HMGET', q.state, ...)) do change = change - tonumber(figure or 0) end
  if change < 0 then redis.call('HDEL', q.state, ...) end
  return change
end

