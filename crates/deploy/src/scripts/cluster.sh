# Prints the state of the cluster, one value per line: name, tab, JSON. Changes nothing. Runs on a
# host of management.
set -eu
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH LC_ALL=C
show() { # name, command...
  name=$1; shift
  found=$(timeout 30 /usr/bin/skep "$@" --cluster /srv/skep/management --output ndjson)
  # An empty list is one empty line here.
  printf '%s\n' "$found" | while IFS= read -r line; do
    [ -z "$line" ] || printf '%s\t%s\n' "$name" "$line"
  done
}
show management management status
show copies config get metadata-copies
show group group list
show node node list
show target target list
