#!/bin/sh
# Epilog of slurmd: removes the file system of the job, if there is one. slurmd runs the epilog at the
# end of each job, also if the job was cancelled or killed. After a crash of the node, the next start
# on this node removes the remains. Runs as root on each node. slurmd drains a node whose epilog
# fails.
directory=/var/lib
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
# This directory exists only while the node has a file system on demand.
[ -d "$directory/skep-ondemand" ] || exit 0
exec skep ondemand stop --job --directory "$directory"
