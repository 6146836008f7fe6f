#!/bin/bash
# A training on one node.
#
#   sbatch one-node.sh
#SBATCH --job-name=grpo-7b
#SBATCH --partition=gpu
# #SBATCH --account=research
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append
set -o errexit -o nounset -o pipefail

# The same after a requeue: it is one run with several attempts.
export SENTINEL_RUN_ID="grpo-7b-$SLURM_JOB_ID"

# Without srun, and in place of the shell: when Slurm ends the job, `sentinel run` and the agent have
# KillWait (30 s) to report it. A srun that gets SIGTERM kills its step at once.
exec sentinel run -- torchrun --standalone --nproc-per-node 8 train.py
