"""What the command line adds to a trainer: a plan, a folder with everything in it, progress, and a way to go on.

plan        all that decides the result of a run, as plain data
run         the run itself
console     what it prints: device, model, data, estimate, commands to go on
journal     a row per epoch, as log.csv and as curves
pictures    those curves, and a batch as the model sees it
signals     Ctrl-C and SIGTERM
gpu_memory  advice when a GPU runs out of memory
"""
