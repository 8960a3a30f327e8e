"""Hints: two or three for each exercise, from vague to concrete. None of them is code to copy."""

from __future__ import annotations

HINTS: dict[str, tuple[str, ...]] = {
    "1.1": (
        "A step to one side only leaves an error as large as the step. Two values around x cancel it.",
        "Two points are twice delta apart. That distance is the divisor.",
    ),
    "1.2": (
        "Start at L and multiply one factor per operation on the way back, as in the table of chapter 1.",
        "All three derivatives share dL/dz. The derivative of tanh can be written with its result y.",
        "dz/dw, dz/db and dz/dx are x, 1 and w.",
    ),
    "2.1": (
        "apply works with arrays inside and Tensors outside: take .data of each input, and wrap the result.",
        "Give the same Context to forward as ctx and to the result as .node; forward saves in it.",
        "The gradient of a product by one factor is g times the other factor. That of a sum is g for each.",
    ),
    "2.2": (
        "A Tensor is ready when all Tensors that use it have been visited. So you need to know how many uses it has.",
        "First walk through the whole graph once and count the uses of each Tensor. Then start again at the output, "
        "lower the counts as you go, and visit what has come down to zero.",
        "x * x uses x twice, so x appears twice in the inputs and counts twice. A list serves as the stack.",
    ),
    "2.3": (
        "Keep a dict from Tensors to the gradients that have arrived so far, and start it with g at this Tensor.",
        "In the order of 2.2, the gradient of a Tensor is complete when you reach it. Leaves are not in that list: "
        "collect theirs in the dict, and hand them out at the end.",
        "To add without surprises, make a new array from the old sum and what arrives; += would edit an array that "
        "another Tensor may hold, too. Copy before you store a first .grad.",
    ),
    "3.1": (
        "There are two kinds of axes to sum over: those added in front, and those of size 1.",
        "The number of axes in front is the difference of the two numbers of axes. The others are found by position, "
        "counted from behind those.",
        "Sum over all of them at once, and let reshape bring back the axes of size 1. In Add, forward has to save the "
        "shapes, because backward sees only g.",
    ),
    "3.2": (
        "Look at the shapes: only one product of g with a transposed factor has the shape of the other factor.",
        "Swap the last two axes only; the ones in front are separate matrices.",
        "A matrix that served several products gets the sum of their gradients, which is what unbroadcast does.",
    ),
    "4.1": (
        "One side is the sum of the gradient times u. The other is the sum of v times a central difference along u. "
        "Draw u and v from one generator: with v = u, a forgotten transpose passes; with ones, any softmax does.",
        "Copy x and v before, and compare after. A comparison with NaN is False: write yours so that NaN fails.",
        "Allow a difference relative to the sum of the absolute values of the terms, plus a tiny constant for "
        "gradients that are zero.",
    ),
    "4.2": (
        "Write the sum over j for one i, and put the derivative in. The part with [i = j] has a single term.",
        "What is left is y_i times a bracket, in which the same number is subtracted for every i of a row.",
        "That number is the product of g and y, summed over the last axis. Keep the axis, or it cannot broadcast.",
    ),
    "4.3": (
        "Save the normalised x, the root that you divided by, and weight. Backward needs nothing else.",
        "weight and bias are used by all tokens, so their gradients are sums over all axes but the last.",
        "The means in the formula of dx are over the last axis, and keep it. Divide at the end.",
    ),
    "4.4": (
        "x Phi(x) is a product: one term of its derivative has Phi, the other has the density.",
        "Forward can compute the derivative along with the value, and save only that.",
    ),
    "5.1": (
        "Split H into (H/p, p) and W into (W/p, p): that is one reshape, to six axes.",
        "Then transpose: image, row of the patch, column of the patch, and behind them channel, row, column within it.",
        "The last reshape joins the two axes of patches, and the three within a patch.",
    ),
    "5.2": (
        "The images need no gradient, so they can stay an array until the patches are cut.",
        "The weight is a Tensor: reshape it with its own method, so that its gradient finds the way back.",
    ),
    "6.1": (
        "Write two small functions, one that splits the last axis into heads and brings them in front of the tokens, "
        "and one that undoes it. 6.2 needs them, too.",
        "The scale is the root of the channels of one head, not of d. The softmax is over the keys, the last axis.",
        "Subtract the largest score of each row before the exponential. Save q, k, v with their heads split, and A.",
    ),
    "6.2": (
        "g has the heads side by side: split it like everything else, and join the three gradients at the end.",
        "A V is a matmul with two factors, so it gives a gradient of A and one of V (3.2). That of A goes through the "
        "softmax (4.2) to the scores.",
        "The scale belongs to the scores, so both dq and dk get it, and dv does not. The one of k needs a transpose.",
    ),
    "6.3": (
        "qkv (B, N, 3 d) can be reshaped to (B, N, 3, h, d/h). One transpose brings 3 and the heads to the front.",
        "Mixing is a linear layer along the axis of the heads. Write a function for it: it is used twice.",
        "The second mixing comes after the softmax, so its rows need not sum to one, and b_w is added after it.",
    ),
    "7.1": (
        "Each branch sees a normalised x, but is added to x itself.",
        "The second line of eq. 4 starts from x', the result of the first, in both places.",
        "diag(lambda) times a vector is a product value by value. The order is: norm, branch, scale, drop, sum.",
    ),
    "7.2": (
        "Draw one number per sample, not one per value, in a shape that broadcasts over tokens and channels.",
        "A uniform number is below `rate` with the probability `rate`. Multiply by 0 or by what keeps the mean.",
    ),
    "8.1": (
        "Only the class token has a query: take it from a slice of z, and keys and values from all of z.",
        "Slice with 0:1 and not with 0, so that the axis of tokens stays.",
    ),
    "8.2": (
        "Read the four steps in the docstring, and write them one line each. part(w, ...) hands weights on.",
        "In the class-attention block, LN(z) is of class token and patches together, and norm2 is of the class token.",
        "cls_token needs its gradient: add the zeros to the Tensor, and not to its .data. LN and head see (B, d): "
        "slice the token away.",
    ),
    "9.1": (
        "m and v are new means; the corrected ones, with a hat, are only for the step and are not returned.",
        "t counts from 1, so the first correction of m divides by 1 - beta_1.",
        "The decay is outside the fraction, and uses theta from before the step. eps is outside the root.",
    ),
    "9.2": (
        "Two cases: before the end of the warm-up, and from there on.",
        "Half a cosine from 1 to 0 is (1 + cos) / 2. Its angle is pi times the share of all steps, at most pi.",
    ),
    "10.1": (
        "Compute log softmax directly: x - max - log of the sum of exp(x - max). Its exponential is the softmax.",
        "Smooth the targets first; after that forward and backward treat them like any others.",
        "The loss is a mean over samples, so the gradient of each is divided by their number, and times g.",
    ),
    "10.2": (
        "The reversed batch is a slice with a step of -1 along the first axis. Images and targets use the same one.",
        "cutmix writes into a copy. mu is what is left of the area: one minus the box by the image.",
    ),
    "11.1": (
        "loss_of gives the mean of its piece. The mean of the batch is the sum of these, each times its share.",
        "Multiply the Tensor by the share before backward, and .grad adds up to what is wanted. "
        "First clear what an earlier step has left.",
    ),
    "12.1": (
        "Six steps in a loop: draw, targets, loss and gradients, learning rate, step, remember the loss.",
        "loss_of is a function of your own inside train: the cross entropy of what cait returns.",
        "If the loss does not move, print it for every step, and check with 8.2, 9.1, 10.1 and 11.1.",
    ),
    "22.1": (
        "A mask of numbers, 1 inside and 0 outside, with an axis for the channels, selects by multiplication.",
        "Each token has the target of one image and no mixture; the image itself has a mixture, by the share of True.",
    ),
}
