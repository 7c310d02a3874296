#!/bin/bash
# run tools from main's venv against this worktree
cd /tmp/wt/rules; export PYTHONPATH=/tmp/wt/rules/src
exec /work/main/.venv/bin/python -m "$@"
