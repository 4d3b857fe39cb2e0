"""What people and models say, and what tools are called: one-way expansions of query words.

Comes in: a term. Goes out: terms that are searched besides it, and the same for short phrases. The word itself is
always searched too, with full weight; an expansion never replaces it. Entries are the general English of
software and offices: none may name one server's tool or serve one query.
"""

from __future__ import annotations

from pi_mcp.search.words import parts, prose_terms, stem

_ABBREVIATIONS = """
db: database
database: db sql
repo: repository
repository: repo
pr: pull request
mr: merge request
k8s: kubernetes kubectl
kubernetes: kubectl k8s
kubectl: kubernetes
msg: message
env: environment
var: variable
gh: github
gl: gitlab
gcal: calendar
gdrive: drive
pg psql: postgres postgresql
postgres: postgresql pg
postgresql: postgres pg
mongo: mongodb
mongodb: mongo
es: elasticsearch
dir: directory
doc docs: document documentation
documentation: doc
config cfg: configuration setting
configuration: config setting
auth: authentication login
spec: specification
img pic: image picture
vm: virtual machine
ppt pptx: powerpoint presentation slide
powerpoint: ppt presentation
xls xlsx: excel spreadsheet
docx: word document
js: javascript
javascript: js script
ts: typescript
py: python
info: information detail
param arg: parameter argument
perf: performance
prod: production
dev: development
org: organization
cal: calendar
addr: address
temp tmp: temporary
pkg: package
dep: dependency
vuln cve: vulnerability
cicd ci: pipeline workflow build
iac: infrastructure terraform
sms: text message
url uri: link address
ai llm: model
wiki: wikipedia page
regex: pattern
repl: interpreter
tz: timezone
sub: subscription
"""

_ACTIONS = """
show display view see: get list
present: show display
get: retrieve fetch read
fetch grab pull obtain: get retrieve read download
retrieve: get fetch read query
find locate: search query list get
search: find query lookup
look lookup: search find get
query: search execute select
ask: query chat search
list enumerate: get show
listing: list
inspect examine: get describe view
check: get verify validate status
verify: check validate
validate: check verify
test: check run
describe explain: get describe detail schema
read: get view
open: read get navigate
load: read open import
create make: add new generate write insert
add: create insert append
attach: add upload attachment
new: create
build: create generate
generate: create make
draw render visualize visualise plot: generate create chart diagram
design: create generate
write: create save edit
compose draft: create write draft
save: write create export
store persist keep: write create add save
remember memorize: store save memory create add
recall: search read open memory get
append: add write
insert: add create write
record register: create add log write
provision: create deploy
setup: create configure
initialize init: create start
update: edit modify set change patch
change modify alter adjust: update edit set
edit: update modify write
fix correct: update edit
rewrite replace: edit update write
set configure assign: update add
rename: move update
relocate: move
move: rename transfer
copy duplicate clone: copy create fork
delete remove: remove delete
erase destroy wipe drop: delete remove
discard undo revert: reset restore delete
clear: delete reset
unstage: reset
stage: add
snapshot: commit record create
switch: checkout change select
checkout: switch
send: post message create
post: send create publish
reply respond answer: comment respond add send
publish: post send create deploy
share: permission send invite
ping notify alert: send message notification
contact: message send
invite: add member
run: execute start
execute exec invoke: run call
launch boot: start run
start begin: create run launch
trigger: run start
restart reboot: start stop
stop end halt: cancel terminate close stop
cancel abort kill: stop terminate delete
upload: add create import
download: get export fetch save
export: download save convert
import: upload load create
compare: diff
diff difference: compare diff
convert transform translate: convert change
turn: convert
calculate compute: calculate evaluate
solve: calculate evaluate
count: number aggregate list
sum: add sum
analyze analyse: analysis analyze
summarize summarise: summary
recommend suggest: recommendation suggestion
visit: navigate open
browse: navigate browser list
go: navigate
press tap: click key
type: fill input
scrape crawl: extract fetch crawl
extract: get parse read
parse: read extract
monitor watch track: status log metric get
debug troubleshoot diagnose: log error analyze
wait: sleep delay
schedule book plan: create event
subscribe: follow watch
approve: merge review update
resolve: update close
close: update
deploy: create release publish
install: add create
enable activate: set update start
disable deactivate: set update stop
allow grant permit: permission add access
block ban: remove delete
invoice bill charge: invoice payment create
pay: payment order
buy purchase: order
think reason: think sequential
brainstorm: think idea
ls: list directory
cat: read file
rm: delete remove
mv: move rename
cp: copy
mkdir: create directory
curl wget: fetch download url
grep: search
"""

_THINGS = """
folder: directory
directory: folder
nested tree hierarchy: tree recursive
subfolder subdirectory: directory tree
file: document
contents: content
content: text
photo picture: image photo picture
screenshot: image capture
image: picture photo
capture: screenshot
movie clip film: video
song audio: track music
music: song audio track
ticket bug defect: issue
story epic: issue
issue: ticket bug
problem: issue error
error exception failure crash: error exception issue log
task: todo
todo reminder: task
note memo: note
email mail: message mail email
inbox: message email mail
message dm: chat message
conversation: thread message chat
thread: reply conversation
meeting appointment: event calendar
event: calendar
calendar agenda: event calendar
chat: message
comment: note reply
invoice: bill
customer client: contact customer
lead prospect: contact
user: member account
teammate colleague coworker: user member
person people: user contact member profile
author: user
assignee: user assigned
website site webpage: page web url
page: web
web internet online: search web url
link: url
article: page paper
paper publication study: article paper research
book: library
price cost fee: price cost quote
quote: price
stock share ticker equity: stock ticker
currency: exchange rate
usd eur gbp jpy cny chf inr: currency exchange rate
btc eth: crypto cryptocurrency bitcoin
money: currency payment
coin crypto bitcoin: cryptocurrency crypto token
cryptocurrency: crypto coin
weather temperature climate: weather forecast
pollution smog: air quality
forecast: weather prediction
place spot venue location: place location
coordinate latitude longitude: geocode location
nearby near around: nearby search
route direction: direction route
distance: route
map: map location
diagram flowchart: chart diagram
chart graph: chart graph diagram
graph: network
table: sheet
spreadsheet sheet: excel sheet
slide deck slideshow: presentation slide
presentation: slide
column: field schema
field: column property
row: record
record: row
schema structure: schema describe
statement: query
sql: query
permission: role access
access: permission role
role: permission
password secret credential: secret credential password
key: secret
token: key
job: task run
pipeline: workflow build
workflow: pipeline action
build: pipeline
server machine host: server instance
instance: server
container: docker
pod: container
variable: env
setting option preference: setting configuration config
detail: get information
information: detail info
metadata: info property
property attribute: property attribute
size: info
performance speed: metric performance
metric: monitor statistic
statistic stat: statistic analytic
analytic: statistic
health: status
status state: status state
log: event
history: log list
past: history log
version: release
release: version
library: package
package module: library
dependency: package
function method: symbol
code: script
script: code
snippet: code
terminal shell console bash: command terminal process
command: execute process terminal
process: command
branch: branch
commit: change
change: commit diff
blame: history
clock: time
now: current
today: current date
hour: time
timezone: time
relationship connection edge: relation link
relation: link
node concept object: entity
entity: node
memory knowledge: memory graph
idea insight: insight
multiple several various: multiple
batch bulk: multiple batch
group team: group member
team: group
channel room: channel
label tag category: label tag category
tag: label
board kanban: board
sprint iteration: sprint
product item: product
item: product
order purchase: order
review feedback: review comment
attachment: file attachment
backup: snapshot export
restore: snapshot backup
index: search
template: component
component widget: component
element: component
form: fill
button: click
tab window: page
restaurant cafe: place food
food meal: recipe
recipe: dish cook
dish: recipe cook meal
hotel accommodation: lodging stay
flight airline: flight
train railway: train ticket
transcript subtitle caption: transcript caption
summary overview: summary overview
example sample: example
guide tutorial: documentation guide
advice guidance: recommendation guide best practice
vulnerability: security
security: vulnerability
model: ai
"""

_PHRASES = """
look up: search lookup
look for: search find
get rid of: delete remove
throw away: discard reset
set up: create configure
check out: checkout switch
turn on: enable start
turn off: disable stop
sign in: login
log in: login
take a picture: screenshot
step by step: sequential thinking
at once: multiple batch bulk
all at once: multiple batch
who am i: me whoami profile current user
file a: create
open a: create
pull request: pr
merge request: mr
virtual machine: vm
environment variable: env
source code: code repository
to do: todo task
error message: log exception
end to end: e2e
what time: current time
right now: current
"""


def _table(*texts: str) -> dict[str, tuple[str, ...]]:
    table: dict[str, dict[str, None]] = {}
    for text in texts:
        for line in text.strip().splitlines():
            words, _, rest = line.partition(":")
            for key in words.split():
                for term in prose_terms(key):
                    table.setdefault(term, {}).update(dict.fromkeys(t for t in prose_terms(rest) if t != term))
    return {term: tuple(others) for term, others in table.items() if others}


EXPANSIONS = _table(_ABBREVIATIONS, _ACTIONS, _THINGS)
"""term → terms searched besides it."""

PHRASES = {
    tuple(parts(words)): tuple(prose_terms(rest))
    for words, _, rest in (line.partition(":") for line in _PHRASES.strip().splitlines())
}
"""Words as written, stop words included → terms searched besides them."""


_BY_STEM: dict[str, tuple[str, ...]] = {}
for _word, _others in EXPANSIONS.items():
    _BY_STEM.setdefault(stem(_word), _others)


def synonyms(term: str) -> tuple[str, ...]:
    """What a query term may also be called; those of another form of the word where it has none of its own."""
    return EXPANSIONS.get(term) or _BY_STEM.get(stem(term), ())
