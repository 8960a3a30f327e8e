"""Files: weights, tensors, downloads, archives.

weights      load and save weights
pth          PyTorch's .pth, read without PyTorch and without executing anything in it
tensorfile   .safetensors
pretrained   a trained model from its weights; the authors' weights, downloaded
download     downloads that resume
fetch, part  an HTTP request that ends; a partial download
archive      safe extraction of .tgz
atomic       atomic writes
"""
