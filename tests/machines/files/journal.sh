#!/bin/sh
# Print the agent's lines of one priority, as the agent wrote them.
journalctl --unit forewarn-agent --no-pager --output=json --output-fields=MESSAGE,PRIORITY |
    jq -r "select(.PRIORITY == \"$1\") | .MESSAGE" | grep '^{'
