#!/bin/sh
# Prolog of slurmd: a job with `#SBATCH --constraint=skep` gets a file system on the local disks of
# its nodes. The prolog mounts it on /mnt/ondemand of each node before the job starts. Runs as root on
# each node. docs/operations/ondemand.md describes the settings of Slurm that the prolog needs.
#
# Change `directory` to a directory on a local disk of the nodes, here and in the epilog. No user
# other than root may be able to replace its entries.
directory=/var/lib
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$PATH
case "${SLURM_JOB_CONSTRAINTS:-}" in
  skep | skep[,\&]* | *[,\&]skep | *[,\&]skep[,\&]*) ;;
  *) exit 0 ;;
esac
# slurmd drains a node whose prolog fails, and puts the job back into the queue.
exec skep ondemand start --job --directory "$directory"
