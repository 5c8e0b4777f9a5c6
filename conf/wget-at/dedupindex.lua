-- dedupindex: wget-AT looks up every response in a dedupindex server, and reports what it stores.
--
-- conf/wget-at/crawl.sh passes this file to wget-AT. A Lua script of your own ends with
--
--     dofile(os.getenv("DEDUPINDEX_HOOK"))
--
-- It replaces the callback dedup_response, and calls the write_to_warc and before_exit that it finds.
-- Environment:
--
--     DEDUPINDEX_URL      address of the server; http://127.0.0.1:8484 if not set
--     DEDUPINDEX_CRAWL    name of the crawl, begun if need be; not set: lookups only, no reports
--     DEDUPINDEX_CDX      the file that wget-AT writes with --warc-cdx; not set: no reports
--     DEDUPINDEX_TOKEN    for servers that want one
--     DEDUPINDEX_COMMIT   "no": do not commit the crawl at the end, as others write to it, too
--
-- Requests go through LuaSocket (Debian: lua-socket) if it is installed and the address is not
-- https, else each runs `curl`. No error here ends the crawl: what could not be looked up is stored.
-- For Lua 5.1 and LuaJIT.

local LIMIT = 2         -- seconds for a request
local LAST_LIMIT = 10   -- seconds for the requests at the end
local FAILURES = 5      -- in a row; then the server counts as away, and is only probed
local LONGEST = 30      -- seconds between probes
local AT_ONCE = 262144  -- bytes of the CDX file in one report
local LARGEST = 1048576 -- bytes of an answer

local server = os.getenv("DEDUPINDEX_URL") or ""
server = (server ~= "" and server or "http://127.0.0.1:8484"):gsub("/+$", "")
local token = os.getenv("DEDUPINDEX_TOKEN") or ""
local crawl = os.getenv("DEDUPINDEX_CRAWL") or ""
local cdx = os.getenv("DEDUPINDEX_CDX") or ""
if crawl == "" then crawl = nil end

local begun = false     -- the crawl, with the server
local not_looked_up, not_reported = 0, 0
local said = {}

local function say(text)
  if not said[text] then
    said[text] = true
    io.stderr:write("dedupindex: ", text, "\n")
  end
end

local function escaped(text)
  return (text:gsub("[^%w%-._~]", function(c) return ("%%%02X"):format(c:byte()) end))
end

-- Requests: (method, path, body, type of the body, seconds) -> status, text; or nil, reason.

local found, socket = pcall(require, "socket")
local host, port, prefix = server:match("^http://%[([^%]]+)%]:?(%d*)(.*)$")
if not host then host, port, prefix = server:match("^http://([^/:]+):?(%d*)(.*)$") end

local function head_of(method, path, body, kind)
  local lines = {
    ("%s %s%s HTTP/1.0"):format(method, prefix, path),
    ("Host: %s"):format(server:match("^http://([^/]+)")),
    "Accept: text/plain, application/json;q=0.9",
  }
  if token ~= "" then lines[#lines + 1] = "Authorization: Bearer " .. token end
  if body then
    lines[#lines + 1] = "Content-Type: " .. kind
    lines[#lines + 1] = "Content-Length: " .. #body
  end
  return table.concat(lines, "\r\n") .. "\r\n\r\n"
end

local function with_socket(method, path, body, kind, limit)
  local deadline = socket.gettime() + limit
  local connection = socket.tcp()
  local function timed(name, ...)
    local left = deadline - socket.gettime()
    if left <= 0 then return nil, "timeout" end
    connection:settimeout(left, "b")
    connection:settimeout(left, "t")
    return connection[name](connection, ...)
  end
  local function exchange()
    local done, why = timed("connect", host, tonumber(port) or 80)
    if not done then return nil, why end
    done, why = timed("send", head_of(method, path, body, kind) .. (body or ""))
    if not done then return nil, why end
    local pieces, size = {}, 0
    repeat
      local piece, ended, rest = timed("receive", 65536)
      pieces[#pieces + 1] = piece or rest
      size = size + #(piece or rest or "")
      if size > LARGEST or (ended and ended ~= "closed") then return nil, ended or "too long" end
    until ended
    local answer = table.concat(pieces)
    local status, rest = answer:match("^HTTP/1%.%d (%d%d%d)[^\n]*\n(.*)$")
    if not status then return nil, "no HTTP answer" end
    local start, stop = ("\n" .. rest):find("\r?\n\r?\n")
    if not start then return nil, "an answer cut short" end
    local text, head = rest:sub(stop), ("\n" .. rest:sub(1, stop)):lower()
    local length = tonumber(head:match("\ncontent%-length:%s*(%d+)"))
    if length and length ~= #text then return nil, "an answer cut short" end
    return tonumber(status), text
  end
  local status, text = exchange()
  connection:close()
  return status, text
end

local settings -- a file for curl, as its arguments would show the token

local function with_curl(method, path, body, kind, limit)
  settings = settings or os.tmpname()
  local function quoted(text)
    local escapes = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }
    return '"' .. text:gsub('[\\"\n]', escapes) .. '"'
  end
  local lines = {
    "silent", 'noproxy = "*"', "max-time = " .. limit, "max-filesize = " .. LARGEST,
    "request = " .. method, "url = " .. quoted(server .. path),
    'header = "Accept: text/plain, application/json;q=0.9"', 'write-out = "\\n%{http_code}"',
  }
  if token ~= "" then lines[#lines + 1] = "header = " .. quoted("Authorization: Bearer " .. token) end
  if body then
    lines[#lines + 1] = "header = " .. quoted("Content-Type: " .. kind)
    lines[#lines + 1] = "data-binary = " .. quoted(body)
  end
  local file, why = io.open(settings, "wb")
  if not file then return nil, why end
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
  local run = io.popen(("curl -q --config '%s' 2>/dev/null; echo \" $?\""):format(settings), "r")
  if not run then return nil, "curl could not be run" end
  local text, status, ended = run:read("*a"):match("^(.*)\n(%d%d%d) (%d+)%s*$")
  run:close()
  if ended == "7" then return nil, "connection refused" end
  if ended ~= "0" then return nil, "curl failed" .. (ended and " with " .. ended or "") end
  return tonumber(status), text
end

local send = found and host and with_socket or with_curl

-- In an outage the server is probed now and then, and all is stored.

local failures, away_since, next_probe = 0, nil, 0

local function failed(why)
  failures = failures + 1
  if failures < FAILURES then return end
  local now, pause = os.time(), 1
  if not away_since then
    away_since = now
    say("the server does not answer (" .. tostring(why) .. "); until it does, all is stored")
  end
  if why ~= "connection refused" then pause = math.max(1, math.min((now - away_since) / 10, LONGEST)) end
  next_probe = now + pause
end

local function away() return failures >= FAILURES and os.time() <= next_probe end

-- Return status and text of an answer; with status 200 the text has the pattern `expected`.
local function ask(expected, limit, method, path, body, kind)
  local ok, status, text = pcall(send, method, path, body, kind, limit or LIMIT)
  if not ok then status, text = nil, status end
  if not status or status >= 500 then
    failed(status and "status " .. status or text)
    return nil
  elseif status == 200 and not text:find(expected) then
    failed("an answer that cannot be read")
    return nil
  end
  failures, away_since = 0, nil
  return status, text
end

local FORM = "application/x-www-form-urlencoded"

-- Return whether the server answers; an unusable crawl is given up, and lookups go on without it.
local function begin(limit)
  if begun or not crawl then return true end
  local form = "digest_covers=entity&name=" .. escaped(crawl)
  local status, text = ask('"state"', limit, "POST", "/crawls", form, FORM)
  if not status then return false end
  begun = status == 200
  if not begun then
    say(("crawl %s could not be begun: lookups are in no report (%s)"):format(crawl, text))
    crawl = nil
  end
  return true
end

-- Reports are read from the CDX file, which keeps them in an outage, too. Lines that are in it now
-- are those of an earlier run.

local function opened(path) return path ~= "" and io.open(path, "rb") or nil end

local position = 0
do
  local file = opened(cdx)
  if file then
    position = file:seek("end")
    file:close()
  end
end

-- Bytes of payload, which the CDX file lacks: of the response to be looked up, and by URL of those
-- whose line is still to be read.
local size
local sizes, sized = {}, 0

local function keep_size(url)
  if size and sized < 10000 then
    if not sizes[url] then sized = sized + 1 end
    sizes[url] = size
  end
end

local function json(text)
  return '"' .. text:gsub('[%c"\\]', function(c) return ("\\u%04x"):format(c:byte()) end) .. '"'
end

-- Return a capture as JSON, "" for the header, nil for a line that cannot be reported.
local function capture_of(line)
  if line:match("^ CDX ") then return "" end
  local fields = {}
  for field in line:gmatch("[^ ]+") do fields[#fields + 1] = field end
  local url, date, _, mime, status, digest, _, _, offset, container, id = unpack(fields)
  local year, month, day, hour, minute, second =
    (date or ""):match("^(%d%d%d%d)(%d%d)(%d%d)(%d%d)(%d%d)(%d%d)$")
  if #fields ~= 11 or not year or line:match("[\128-\255]") then return nil end
  local parts = {
    '"url":' .. json(url), '"digest":' .. json("sha1:" .. digest),
    ('"date":"%s-%s-%sT%s:%s:%sZ"'):format(year, month, day, hour, minute, second),
    '"container":' .. json(container), '"record_id":' .. json(id),
  }
  if mime ~= "-" then parts[#parts + 1] = '"mime":' .. json(mime) end
  if status:match("^%d%d%d$") then parts[#parts + 1] = '"status":' .. status end
  if offset:match("^%d+$") then parts[#parts + 1] = '"offset":' .. offset end
  if sizes[url] then parts[#parts + 1] = '"size":' .. sizes[url] end
  return "{" .. table.concat(parts, ",") .. "}"
end

-- Return the next captures as JSON lines, their number, how many cannot be reported, where they end.
local function next_captures()
  local file = opened(cdx)
  if not file then return "", 0, 0, position end
  file:seek("set", position)
  local text = file:read(AT_ONCE) or ""
  file:close()
  local lines, bad, after = {}, 0, position
  for line in text:gmatch("([^\n]*)\n") do
    after = after + #line + 1
    local capture = capture_of(line)
    if not capture then bad = bad + 1 elseif capture ~= "" then lines[#lines + 1] = capture end
  end
  return table.concat(lines, "\n"), #lines, bad, after
end

-- Report what was stored since the last report; return whether all was answered.
local function report(limit)
  while crawl and begun do
    local lines, count, bad, after = next_captures()
    if after == position then
      sizes, sized = {}, 0
      return true
    end
    if count > 0 then
      local path = "/captures?crawl=" .. escaped(crawl)
      local status, text = ask('"added"', limit, "POST", path, lines .. "\n", "application/x-ndjson")
      if not status then return false end
      if status ~= 200 then
        bad = bad + count
        say(("the server refuses the reports of crawl %s: %s"):format(crawl, text))
      else
        bad = bad + (tonumber(text:match('"bad":%s*(%d+)')) or 0)
      end
    end
    position, not_reported = after, not_reported + bad
  end
  return true
end

local ORIGINAL = "WARC%-Refers%-To%-Target%-URI: ([^\r\n]+)\r?\nWARC%-Refers%-To%-Date: (%d%d%d%d%-[%d:.T%-]+Z)"

local function look_up(url, digest)
  not_looked_up = not_looked_up + 1 -- until there is an answer
  if away() or not begin() or not report() then return nil end
  local path = ("/lookup?digest=%s&url=%s"):format(escaped(digest), escaped(url))
  path = path .. (crawl and "&crawl=" .. escaped(crawl) or "&covers=entity")
  if size then path = path .. "&size=" .. size end
  local status, text = ask(ORIGINAL, LIMIT, "GET", path)
  if status == 204 then
    not_looked_up = not_looked_up - 1
    return nil
  elseif status ~= 200 then
    if status then say("a lookup was refused: " .. text) end
    return nil
  end
  not_looked_up = not_looked_up - 1
  local target, date = text:match(ORIGINAL)
  -- wget-AT ends with a segmentation fault if there is no date or target
  return { target_uri = target, date = date, response_uuid = text:match("WARC%-Refers%-To: (<[^\r\n]+>)") }
end

local function finish(exit)
  if not crawl then return end
  if not begin(LAST_LIMIT) or not report(LAST_LIMIT) then
    return say(("crawl %s is not committed, as the server does not answer; add the WARC to the index"):format(crawl))
  elseif not crawl then
    return
  end
  local form = ("who=%s&not_looked_up=%d&not_reported=%d"):format(
    escaped(cdx .. os.time()), not_looked_up, not_reported)
  local step = "/counts"
  if os.getenv("DEDUPINDEX_COMMIT") ~= "no" then
    step, form = "/commit", form .. "&exit=" .. escaped(exit)
  end
  local path = "/crawls/" .. escaped(crawl) .. step
  local status, text = ask('"state"', LAST_LIMIT, "POST", path, form, FORM)
  if status ~= 200 then
    say(("crawl %s%s failed: %s"):format(crawl, step, status and text or "no answer"))
  end
end

local write, before = wget.callbacks.write_to_warc, wget.callbacks.before_exit

wget.callbacks.write_to_warc = function(url, result) -- before dedup_response
  local whole = result and result.rd_size > 0 and result.restval == 0
  size = whole and ("%d"):format(result.rd_size) or nil
  return not write or write(url, result)
end

wget.callbacks.dedup_response = function(url, digest)
  local ok, answer = pcall(look_up, url, digest)
  if not ok then
    say(tostring(answer))
    answer = nil
  end
  keep_size(url) -- also of revisits: wget-AT stores small payloads (--warc-dedup-min-size) all the same
  return answer
end

wget.callbacks.before_exit = function(status, text)
  local ok, why = pcall(finish, tostring(text))
  if not ok then say(tostring(why)) end
  if not_looked_up > 0 then say(("%d responses were not looked up"):format(not_looked_up)) end
  if not_reported > 0 then say(("%d captures were not reported"):format(not_reported)) end
  if settings then os.remove(settings) end
  if before then return before(status, text) end
  return status
end
