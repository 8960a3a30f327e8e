"""Files from and for people: weights, checkpoints' tensors, downloads, archives.

weights      weights in and out of files of any format
pth          PyTorch's .pth, read without PyTorch and without running anything inside
tensorfile   .safetensors
pretrained   a trained model from its weights; the authors' weights, downloaded
download     downloads that resume
archive      .tgz from strangers, unpacked safely
"""
