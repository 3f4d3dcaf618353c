#!/bin/sh
# TaskProlog of slurmd: ends a task of a job if the prolog could not copy the input of the job. The
# prolog holds such a job, but Slurm may notice this too late, and start the script of the job. Runs
# with the rights of the user before each task, also before the script.
[ -e "/run/skep-refused-jobs/$SLURM_JOB_ID" ] || exit 0
# Slurm runs the task even if this program fails, so kill the process that will become the task.
kill -KILL "$PPID"
