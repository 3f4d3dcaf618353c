#!/bin/sh
# TaskProlog of slurmd: ends a task of a job whose input the prolog could not copy. Slurm may start the
# script of such a job, because it can get the hold of the job after the end of the prolog. Runs with
# the rights of the user before each task, also before the script.
[ -e "/run/skep-refused-jobs/$SLURM_JOB_ID" ] || exit 0
# Slurm runs the task even if this program fails, so kill the process that will become the task.
kill -KILL "$PPID"
