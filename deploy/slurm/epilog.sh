#!/bin/sh
# Epilog of slurmd: removes the file system of the job, if there is one. slurmd runs it at the end of
# each job, also of one that was cancelled or killed. What a crash of the node leaves is removed by
# the next start on it. Runs as root on each node. slurmd drains a node whose epilog fails.
directory=/var/lib
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
# The directory exists only while there are file systems on demand.
[ -d "$directory/skep-ondemand" ] || exit 0
exec skep ondemand stop --job --directory "$directory"
