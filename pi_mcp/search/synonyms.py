"""What people and models say, and what tools are called: one-way expansions of query words.

Comes in: nothing. Goes out: one table, query term → terms that are searched besides it. The word itself is always
searched too, with full weight; an expansion never replaces it. Entries are general English of software and
offices: no entry may name a server's tool or serve one query.
"""

from __future__ import annotations

from pi_mcp.search.words import prose_terms

_ABBREVIATIONS = """
db: database
repo: repository
repository: repo
pr: pull request
mr: merge request
k8s: kubernetes kubectl
kubernetes: kubectl
msg: message
env: environment
gh: github
gl: gitlab
pg: postgres postgresql
postgres: postgresql pg
postgresql: postgres pg
mongo: mongodb
es: elasticsearch
dir: directory
doc: document documentation
config: configuration setting
auth: authentication
docs: documentation
spec: specification
img: image
pic: image picture
vm: virtual machine
aks: kubernetes
ppt: powerpoint presentation slide
powerpoint: ppt presentation
pptx: powerpoint ppt presentation
xlsx: excel
docx: word document
js: javascript
ts: typescript
py: python
info: information detail
param: parameter
perf: performance
prod: production
dev: development
org: organization
sub: subscription
cal: calendar
addr: address
num: number
temp: temperature
pkg: package
dep: dependency
vuln: vulnerability
ci: workflow pipeline build
iac: infrastructure terraform bicep
sms: text message
url: link
"""

_GENERAL = """
show: list get view
display: list get show
see: list get view
view: get show list
fetch: get retrieve read
retrieve: get fetch list
get: retrieve fetch read
find: search query lookup list get
search: find query
look: search find get
lookup: search find get
query: search execute
list: get
listing: list
enumerate: list
what: list get
check: get verify status
inspect: get describe
describe: get detail
read: get
open: read get
load: read
create: add new make
add: create insert
make: create generate
new: create
build: create generate
generate: create
draw: generate create chart
write: create save
save: write create store
store: save add create
insert: add create
record: add create log
provision: create
setup: create configure
update: edit modify set change
change: update edit modify set
modify: update edit
edit: update modify
alter: update modify
set: update
rename: update move
configure: set update
delete: remove
remove: delete
erase: delete
destroy: delete
drop: delete remove
discard: delete reset
send: post
post: send create
reply: respond comment
publish: send post
share: permission send
run: execute start
execute: run query
exec: execute run
launch: start run
start: run create launch
stop: cancel end
cancel: stop
end: stop
upload: add create import
download: get export fetch
export: download save
import: upload load
compare: diff
difference: diff
change: diff
history: log
convert: transform
translate: convert
calculate: compute
compute: calculate
count: number aggregate
sum: add
analyze: analysis
analyse: analyze analysis
summarize: summary
visit: navigate
browse: navigate browser
go: navigate
folder: directory
directory: folder
map: tree
file: document
picture: image
photo: image
image: picture
movie: video
song: track music
ticket: issue
bug: issue
issue: ticket
error: issue exception
defect: issue bug
task: todo
todo: task
note: memo
email: mail message
mail: email
message: chat
meeting: event
appointment: event
schedule: event calendar
chat: message
comment: reply note
invoice: bill
bill: invoice
customer: client contact
user: member
person: user people contact
people: user person contact
teammate: user member
website: page web url site
webpage: page web
site: website web
page: web
link: url
internet: web
online: web
cost: price pricing
price: cost quote
fee: cost
weather: forecast
forecast: weather
place: location
location: place
address: location
route: direction
direction: route
diagram: chart
chart: graph diagram
graph: chart
plot: chart graph
table: sheet
spreadsheet: excel sheet
slide: presentation
presentation: slide
column: field
row: record
schema: structure
permission: role access
access: permission
password: credential
credential: secret
job: task run
server: instance
instance: server
cluster: node
variable: env
secret: credential
setting: configuration config
configuration: setting config
option: setting
detail: get information
information: detail get
property: attribute
performance: metric
metric: monitor
health: status
status: state
state: status
log: event
library: package
package: library
dependency: package
version: release
release: version
doc: document
article: page
paper: article
research: paper
stock: share
share: stock
currency: exchange
money: currency
coin: token crypto
crypto: cryptocurrency token
cryptocurrency: crypto coin token
train: ticket railway
flight: airline
restaurant: food
recipe: cook dish
phone: mobile
reason: think
"""


def _table(*texts: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    table: dict[str, tuple[tuple[str, ...], ...]] = {}
    for text in texts:
        for line in text.strip().splitlines():
            word, _, rest = line.partition(":")
            key = prose_terms(word) or [word.strip()]
            values = tuple((term,) for term in prose_terms(rest) if term != key[0])
            table[key[0]] = table.get(key[0], ()) + tuple(v for v in values if v not in table.get(key[0], ()))
    return table


EXPANSIONS = _table(_ABBREVIATIONS, _GENERAL)
