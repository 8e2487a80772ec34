"""Speed: this library and its peers (libraries that do the same work) in one interleaved run (`selfteach bench`).

    workloads.py rollout.py learn.py step.py   what is measured: models, prompts and batches; a file per benchmark
    interleaved.py worker.py                   a process for each system, which take turns round by round
    roofline.py                                the least cost of a workload, and the machine's limit for it
    systems.py own/ peers/                     the systems measured: selfteach, and its peers, which do not import it
    measure.py report.py                       the results of a run, and their tables

In the wheel, because it is a command for users: which precision, width and number of threads are fastest differs from
machine to machine, and a claim about speed should be checkable where it matters. It adds 80 kB and no dependency: peers
are found where they are installed, in any environment (`--python PEER=PATH`), and are never imported here. No run needs
anything of it.
"""
