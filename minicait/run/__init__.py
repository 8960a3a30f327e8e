"""The command line's view of a trainer: a plan, a folder with all results, progress, and resuming.

plan        everything that decides the result of a run, as plain data
run         the run itself; `start`: a new one, or one that is resumed
folder      a new folder for each run, and its plan as a file
console     printed text: device, model, data, estimate, next commands
card        what a run tells about its weights in a model card; `command`: the command that trains by its plan
journal     a row per epoch, as log.csv and as curves.svg; `curves` draws any lines with labelled axes
pictures    a training batch, and the attention of the trained model; `label_picture`: label maps
overview    the page of a run, index.html, by `sections` and the templates in page/; `film` has the maps of a few images
            over the epochs, `mistakes` the last evaluation
finish      pictures and reports of the best weights, after training
advice      errors with advice on how to continue, and a micro-batch that fits a GPU's memory
signals     Ctrl-C, SIGTERM and SIGHUP
progress    what a run adds to its checkpoints, of which the last two are kept
lock        one process at a time writes to a folder
"""
