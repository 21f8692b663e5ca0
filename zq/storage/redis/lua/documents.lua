-- SPDX-License-Identifier: Apache-2.0
-- Documents.

---- part document

-- Part of scripts on documents; documents.py describes their layout. The keys documents, titles and expiry of a project
-- follow one another.

local ANY = '*'
local DOCUMENT = '>I8I2'

-- Returns the version of a packed document, or "" if it is missing or has expired.
local function version_of(packed, now)
  if not packed then return '' end
  local expires, length, at = struct.unpack(DOCUMENT, packed)
  return (expires == 0 or expires > now) and string.sub(packed, at, at + length - 1) or ''
end

local function version_now(title, now) return version_of(redis.call('HGET', KEYS[1], title), now) end

-- Stores a document that expires at `expires` ("0" = never). The first of the three keys is KEYS[at].
local function store_document(at, title, expires, packed)
  redis.call('HSET', KEYS[at], title, packed)
  redis.call('ZADD', KEYS[at + 1], 0, title)
  if expires == '0' then
    redis.call('ZREM', KEYS[at + 2], title)
  else
    redis.call('ZADD', KEYS[at + 2], expires, title)
  end
end

-- Stores a document. KEYS: documents, titles, expiry. ARGV: now, title, "=" and the expected version ("" = missing) or
-- "*", expiry or 0, packed document. Returns 1; returns 0 without a change if the document has another version.
local function put_document()
  local title = ARGV[2]
  if ARGV[3] ~= ANY and ARGV[3] ~= '=' .. version_now(title, tonumber(ARGV[1])) then return 0 end
  store_document(1, title, ARGV[4], ARGV[5])
  return 1
end

---- script document_put

return put_document()

---- script document_put_vital: allow-oom

return put_document()

---- script document_delete: allow-oom

-- Removes a document. KEYS: see `document`. ARGV: now, title, "=" and the expected version or "*". Returns 1, or 0 if
-- no document has this version.

local title, version = ARGV[2], version_now(ARGV[2], tonumber(ARGV[1]))
if version == '' or ARGV[3] ~= ANY and ARGV[3] ~= '=' .. version then return 0 end
redis.call('HDEL', KEYS[1], title)
redis.call('ZREM', KEYS[2], title)
redis.call('ZREM', KEYS[3], title)
return 1

---- script document_list: no-writes

-- Lists documents by title. KEYS: see `document`. ARGV: now, from, to (as for BYLEX), maximum number of titles to
-- examine. Returns the title to continue after, "" at the end; then titles and packed documents.

local titles = redis.call('ZRANGE', KEYS[2], ARGV[2], ARGV[3], 'BYLEX', 'LIMIT', 0, ARGV[4])
local found = { #titles == tonumber(ARGV[4]) and titles[#titles] or '' }
for _, title in ipairs(titles) do
  local packed = redis.call('HGET', KEYS[1], title)
  if version_of(packed, tonumber(ARGV[1])) ~= '' then
    found[#found + 1], found[#found + 2] = title, packed
  end
end
return found
