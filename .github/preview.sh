#!/bin/bash
# Writes the comment on a pull request to the file $1: the output of `pulumi preview` of stack $STACK, and the diff of the
# rendered chart between the checkouts ../base and this one, each with its own files and settings. `pulumi preview` shows
# which values of the Helm release change, but not what that changes in the cluster. Exits with the preview's exit code.
set -u
LIMIT=30000 # GitHub rejects comments of more than 65,536 characters
python=${PYTHON:-$PWD/venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without the cluster's API (a private endpoint), the preview excludes the Kubernetes resources. Before the first `up`, and
# with compute off, the stack has no cluster.
server=$(pulumi stack output kubeconfig --show-secrets --stack "$STACK" 2> /dev/null |
  "$python" -c 'import json, sys; print(json.load(sys.stdin)["clusters"][0]["cluster"]["server"])' 2> /dev/null)
exclude=() unreachable=
if [ -n "$server" ] && ! curl --silent --show-error --insecure --connect-timeout 10 -o "$work/answer" "$server" 2> "$work/why"; then
  unreachable=$(cat "$work/why")
  exclude=(--exclude '**kubernetes:**' --exclude-dependents)
fi
pulumi preview --diff --non-interactive --color never --stack "$STACK" "${exclude[@]}" > "$work/preview" 2>&1
code=$?

for side in base head; do
  folder=$PWD
  [ $side = head ] || folder=$PWD/../base
  (cd "$folder" && "$python" -m aws render --stack "$STACK") > "$work/$side" 2>&1 ||
    echo "The $side could not be rendered, so the comparison is incomplete." >> "$work/$side"
done
diff --unified --label base --label head "$work/base" "$work/head" > "$work/chart"

# Prints a file as a code block. A fence of four backticks is longer than every one that the text can contain then.
block() {
  cat "$1" >&2
  echo '````diff'
  head --bytes=$LIMIT "$1" | sed 's/````*/```/g'
  [ "$(wc --bytes < "$1")" -le $LIMIT ] || printf '\n… cut here; the rest is in the log of the workflow\n'
  echo '````'
}
{
  echo "### Preview of \`$STACK\`"
  [ $code -eq 0 ] || echo "**The preview failed** (exit code $code). Fix: correct the cause in its output below."
  [ -z "$unreachable" ] || echo "**Not compared:** namespace and release, since the cluster's API was not reached" \
    "($unreachable). What follows is AWS only."
  block "$work/preview"
  echo '### Rendered chart, base → head'
  if [ -s "$work/chart" ]; then block "$work/chart"; else echo 'The rendered chart does not change.'; fi
} > "$1"
exit $code
