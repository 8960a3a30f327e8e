"""Files: weights, tensors, downloads, archives.

weights      load and save weights
tensorfile   .safetensors
npz          NumPy's .npz
pth          PyTorch's .pth, read without PyTorch and without executing anything in it
zipped       zip archives, which .npz and .pth files are
unpickle     pickles, interpreted without running anything
bounds       names and shapes that a tensor can have
pretrained   a trained model from its weights; the authors' weights, downloaded
download     downloads that resume
fetch, part  an HTTP request that ends; a partial download
archive      safe extraction of .tgz
atomic       atomic writes
"""
