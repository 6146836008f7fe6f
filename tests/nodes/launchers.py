"""The command lines of launchers that start one job on each of its nodes."""


def torchrun(job, host):
    return [
        *("-m", "torch.distributed.run"),
        *("--nnodes", len(job.hosts), "--node-rank", job.hosts.index(host)),
        *("--nproc-per-node", job.ranks),
        *("--master-addr", job.hosts[0].address, "--master-port", job.port),
    ]


def elastic(job, host):
    """Elastic torchrun, with any number of its nodes; the first one hosts the rendezvous."""
    first = host is job.hosts[0]
    return [
        *("-m", "torch.distributed.run"),
        *("--nnodes", f"1:{len(job.hosts)}", "--nproc-per-node", job.ranks),
        *("--rdzv-backend", "c10d", "--rdzv-id", "elastic", "--max-restarts", "9"),
        *("--rdzv-endpoint", f"{job.hosts[0].address}:{job.port}"),
        *("--rdzv-conf", f"last_call_timeout=3,is_host={int(first)}"),
        *("--local-addr", host.address),
    ]


def accelerate(job, host):
    return [
        *("-m", "accelerate.commands.launch", "--multi_gpu"),
        *("--num_machines", len(job.hosts), "--machine_rank", job.hosts.index(host)),
        *("--num_processes", len(job.all_ranks)),
        *("--main_process_ip", job.hosts[0].address, "--main_process_port", job.port),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
    ]


def deepspeed(job, host):
    nodes = job.folder / "hostfile"
    nodes.write_text("".join(f"{each.name} slots={job.ranks}\n" for each in job.hosts))
    return [
        *("-m", "deepspeed.launcher.runner", "--hostfile", nodes, "--no_ssh"),
        *("--node_rank", job.hosts.index(host)),
        *("--master_addr", job.hosts[0].address, "--master_port", job.port),
    ]


COMMANDS = {each.__name__: each for each in (torchrun, elastic, accelerate, deepspeed)}
"""Launchers by name."""
